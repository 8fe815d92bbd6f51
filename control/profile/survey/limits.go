package survey

import (
	"fmt"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Limits returns the limits of an engine, and a text with the source of each. A limit is the value
// in said if that is not 0, else the value on the metrics page, else the assumed value. An invalid
// page is ignored.
func Limits(said profile.Limits, page []byte, assumed profile.Limits) (l profile.Limits, words string) {
	l = assumed
	told, assumes := []string{}, []string{}
	size, _ := engine.BlockTokens(page)
	if n, ok := size.Get(); ok && n >= 1 {
		l.BlockSize = int(n)
	}
	load, _ := new(engine.Reader).Load(page, "")
	blocks := "assumed"
	if tokens, ok := load.KVTokens.Get(); ok && int(tokens) >= l.BlockSize {
		l.KVBlocks, blocks = int(tokens)/l.BlockSize, "told"
	}
	if slots, ok := load.MaxAdapters.Get(); ok && slots >= 1 {
		l.GPUAdapters, l.HostAdapters = int(slots), int(slots)
	}
	for _, is := range []struct {
		name  string
		said  int
		limit *int
		from  string
	}{
		{"maxSequences", said.MaxSequences, &l.MaxSequences, "assumed"},
		{"maxBatchedTokens", said.MaxBatchedTokens, &l.MaxBatchedTokens, "assumed"},
		{"kvBlocks", said.KVBlocks, &l.KVBlocks, blocks},
		{"blockSize", said.BlockSize, &l.BlockSize, blocks},
	} {
		switch {
		case is.said > 0:
			*is.limit = is.said
		case is.from == "told":
			told = append(told, is.name)
		default:
			assumes = append(assumes, is.name)
		}
	}
	if len(told) > 0 {
		words = fmt.Sprintf("The engine reports %s.", join(told))
	}
	if len(assumes) > 0 {
		if words != "" {
			words += " "
		}
		words += fmt.Sprintf("Assumed: %s.", join(assumes))
	}
	return l, words
}
