package profile_test

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

// For any name, source and times, a formatted profile parses to the same profile.
func TestFormat(t *testing.T) {
	of := parseFile(t, "llama-2-70b-a100x4.yaml")
	full := of
	full.FrontendOverhead, full.LaunchOverhead, full.MixedBatchOverhead, full.AsyncScheduling = 0.012, 0.0535, 0.004, true
	full.Prefill.Floor, full.Prefill.PerTokenSquared, full.Decode.AdapterSlowdown = 0.02, 1.318e-09, 1.0/3+1
	full.Decode.PerKVToken, full.AdapterLoad.StdDev, full.Prefill.Base = math.SmallestNonzeroFloat64, 1e21, 0
	for _, p := range []profile.Profile{of, full} {
		for _, text := range []string{
			"", "plain", "8B: on 4 x #1, \"best\" {x}", "- a", " spaces  around ", "two\nlines\n", "tab\there", "ü \u2028 \x7f",
			"null", "12",
			strings.Repeat("Half of 100 rows are missed by 0.7 %, 90 % by: # 5 %. ", 9) + strings.Repeat("x", 300) + " end",
			">- no", "%", "'", "@at: the, start",
		} {
			p.Name, p.Source = text, text
			written := profile.Format(p)
			read, err := profile.Parse(written)
			if err != nil || read != p {
				t.Errorf("%v: %+v is written as\n%sand read as %+v", err, p, written, read)
			}
			for line := range strings.Lines(string(written)) {
				if len(line) > 150 && !strings.Contains(line, "xxx") {
					t.Errorf("a line is %d bytes long: %s", len(line), line)
				}
			}
		}
	}
	p := of
	p.Name, p.Source = "Small", "Measured, once: "+strings.TrimSpace(strings.Repeat("twice ", 30))
	want := `name: "Small"
source: >-
  Measured, once: ` + strings.TrimSpace(strings.Repeat("twice ", 17)) + `
  ` + strings.TrimSpace(strings.Repeat("twice ", 13)) + `
prefill: {base: 0.0415, perToken: 0.0001567, perTokenSquared: 1.459e-08, maxMeasuredTokens: 8192}
decode: {base: 0.044, perSequence: 9.892e-05, perKVToken: 3.61e-07}
adapterLoad: {mean: 0.25, stddev: 0.05}
adapterActivation: {mean: 0.02, stddev: 0.002}
limits: {maxSequences: 256, maxBatchedTokens: 8192, kvBlocks: 16384, blockSize: 16, gpuAdapters: 4, hostAdapters: 16}
`
	if got := string(profile.Format(p)); got != want {
		t.Errorf("it is written as\n%swant\n%s", got, want)
	}
}

// A formatted batch profile parses to the same profile.
func TestFormatBatches(t *testing.T) {
	b, err := profile.ParseBatches([]byte(byBatch))
	if err != nil {
		t.Fatal(err)
	}
	written := profile.FormatBatches(b)
	want := `name: "resnet on a T4"
source: >-
  made up
hardware: "t4"
price: 0.5
batches:
- size: 1
  mean: 0.01
- size: 4
  mean: 0.016
  quantiles:
  - {share: 0.5, seconds: 0.01}
  - {share: 0.9, seconds: 0.02}
  - {share: 1, seconds: 0.06}
- size: 8
  mean: 0.02
`
	if read, err := profile.ParseBatches(written); err != nil || string(written) != want || !reflect.DeepEqual(read, b) {
		t.Errorf("%v: it is written as\n%swant\n%s", err, written, want)
	}
	b = profile.NewBatches("<1>\n", profile.Batch{Size: 1, Mean: 1e-9})
	if read, err := profile.ParseBatches(profile.FormatBatches(b)); err != nil || !reflect.DeepEqual(read, b) {
		t.Errorf("%v: it is read as %+v", err, read)
	}
}
