// Package traffic generates the lengths of requests for simulated fleets, and reads traces.
package traffic

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Length is the number of prompt and output tokens of a request.
type Length struct{ Prompt, Output int }

// Conversations draws n lengths like those of human conversations. They are lognormal, with the
// medians and means of the conversation trace of Splitwise (Patel et al., ISCA 2024, section III:
// medians of 1,020 and 129 tokens). A prompt has at most 4,096 tokens and an output at most 1,000.
func Conversations(random *rand.Rand, n int) []Length {
	all := make([]Length, n)
	for i := range all {
		all[i] = Length{drawn(random, 1020, 0.9, 4096), drawn(random, 129, 1.0, 1000)}
	}
	return all
}

// drawn draws an integer between 1 and most from a lognormal distribution.
func drawn(random *rand.Rand, median, sigma float64, most int) int {
	return min(max(1, int(median*math.Exp(sigma*random.NormFloat64()))), most)
}

// Read opens the trace file in dir and parses it with read. Errors name the file.
func Read(dir, file string, read func(io.Reader) error) error {
	path := filepath.Join(dir, file)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no trace %s: name the folder that has it by --traces or $TRACE_DIR", path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := read(f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
