package engine

import "regexp"

// LoadFault is why an engine did not load a model, as far as its words tell.
type LoadFault uint8

const (
	// UnknownFault is any other than those that follow.
	UnknownFault LoadFault = iota
	// RankTooLarge: the rank of the adapter is larger than the engine takes.
	RankTooLarge
	// FilesMissing: the engine finds no adapter at its source, or no model of that name, or not its files, in its repository.
	FilesMissing
)

var (
	rankTooLarge = regexp.MustCompile(`LoRA rank \d+ is greater than max_lora_rank`)
	filesMissing = regexp.MustCompile(`No adapter found for `)
)

// ReadLoadFault reads the words with which an engine refused to load an adapter: those of vLLM 0.32.0, as recorded.
func ReadLoadFault(words string) LoadFault {
	switch {
	case rankTooLarge.MatchString(words):
		return RankTooLarge
	case filesMissing.MatchString(words):
		return FilesMissing
	}
	return UnknownFault
}
