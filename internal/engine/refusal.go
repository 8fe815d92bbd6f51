package engine

import "regexp"

// LoadFault is why an engine did not load a model, as far as its message reveals.
type LoadFault uint8

const (
	// UnknownFault is any other reason.
	UnknownFault LoadFault = iota
	// RankTooLarge: the adapter's rank exceeds the engine's maximum.
	RankTooLarge
	// FilesMissing: the engine finds no adapter at the source, or no such model or files in its
	// repository.
	FilesMissing
)

var (
	rankTooLarge = regexp.MustCompile(`LoRA rank \d+ is greater than max_lora_rank`)
	filesMissing = regexp.MustCompile(`No adapter found for `)
)

// ReadLoadFault parses an engine's message after a failed adapter load, as recorded from vLLM
// 0.32.0.
func ReadLoadFault(words string) LoadFault {
	switch {
	case rankTooLarge.MatchString(words):
		return RankTooLarge
	case filesMissing.MatchString(words):
		return FilesMissing
	}
	return UnknownFault
}
