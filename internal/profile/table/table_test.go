package table

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/fit"
)

func TestParseHardware(t *testing.T) {
	for text, want := range map[string]Hardware{
		"4 x A100-80GB": {4, "A100-80GB"}, "A100-80GB": {1, "A100-80GB"}, "4xH100": {4, "H100-80GB"}, "8×h200": {8, "H200-141GB"},
		"2 L40S": {2, "L40S"}, "  l4 ": {1, "L4"}, "1 X a100 40gb": {1, "A100-40GB"}, "4*T4": {4, "T4"}, "2 xH100-80GB": {2, "H100-80GB"},
		"NVIDIA-A100-SXM4-80GB": {1, "A100-80GB"}, "NVIDIA-H100-80GB-HBM3": {1, "H100-80GB"}, "Tesla-T4": {1, "T4"},
		"NVIDIA-A10G": {1, "A10G"},
		"nvidia-l4":   {1, "L4"}, "2 x NVIDIA A100-PCIE-40GB": {2, "A100-40GB"}, "a100-80gb": {1, "A100-80GB"},
		"NVIDIA-H200":     {1, "H200-141GB"},
		"NVIDIA-H100-NVL": {1, "H100-80GB"}, "64 x L4": {64, "L4"}, "V100-32GB": {1, "V100-32GB"},
	} {
		if got, err := ParseHardware(text); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                          `hardware "": write how many GPUs of which kind share one model, such as 4 x A100-80GB; known are T4, V100-16GB`,
		"4":                         `hardware "4": write how many GPUs`,
		"4 x":                       `no GPU in the table is called "x"`,
		"0 x L4":                    `hardware "0 x L4": 0 GPUs share no model: write 1 to 64`,
		"65 x L4":                   "65 GPUs share no model",
		"2 x B300":                  `hardware "2 x B300": no GPU in the table is called "B300"; known are T4, V100-16GB, V100-32GB, A10, A10G, L4, L40S, A100-40GB, A100-80GB, H100-80GB, H200-141GB`,
		"A100":                      `no GPU in the table is called "A100"; known are`, // ambiguous: there are A100s with 40 and 80 GB
		"-1 x L4":                   `hardware "-1 x L4": write how many`,
		"4 x 4 x L4":                `hardware "4 x 4 x L4": no GPU in the table is called "x 4 x L4"`,
		"99999999999999999999 x L4": "GPUs share no model",
	} {
		if _, err := ParseHardware(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestParseParameters(t *testing.T) {
	for text, want := range map[string]float64{"8B": 8, "70b": 70, "0.5 B": 0.5, "500M": 0.5, "3.2B": 3.2} {
		if got, err := ParseParameters(text); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "8", "B", "-8B", "0B", "8x7B", "1e3B", "99999B", "NaNB"} {
		_, err := ParseParameters(text)
		if want := `": write how many the model has, such as 8B, 70B or 500M`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Published measurements are used for models of about the same size. Other profiles are computed.
func TestMeasurementsTakePrecedence(t *testing.T) {
	for _, c := range []struct {
		hardware, parameters string
		want                 int // index of the expected measurement; -1 if none
	}{
		{"4 x A100-80GB", "70B", 5},
		{"4 x A100-80GB", "72B", 5},
		{"4 x A100-80GB", "65B", 5},
		{"4 x A100-80GB", "80B", -1},
		{"4 x A100-80GB", "60B", -1},
		{"2 x A100-80GB", "3.2B", 0},
		{"A100-80GB", "8B", -1},
		{"2 x H100", "8B", -1},
		{"8 x H100", "176B", 11},
	} {
		p, err := Of(c.hardware, c.parameters, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := slices.IndexFunc(known.Measured, func(m measured) bool { return m.Prefill == p.Prefill && m.Decode == p.Decode })
		says := strings.Contains(p.Source, "rows that it had not seen are missed by")
		if got != c.want || says != (got >= 0) || says == strings.Contains(p.Source, "By data sheets") {
			t.Errorf("%s on %s is measurement %d, want %d: %s", c.parameters, c.hardware, got, c.want, p.Source)
		}
	}
}

// The expected roofline is computed by hand. A model with 8 billion parameters has 32 layers with a
// hidden size of 4,564, and 16 GB of weights.
func TestRoofline(t *testing.T) {
	one, err := Of("A100-80GB", "8B", 0)
	if err != nil {
		t.Fatal(err)
	}
	four, err := Of("4 x L4", "8B", 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of        string
		got, want float64
	}{
		{"floor", one.Prefill.Floor, 32 * 0.000753},
		{"base", one.Prefill.Base, 32 * 0.00026},
		{"per token", one.Prefill.PerToken, 16e9 / (312e12 * 0.59)},
		{"per token squared", one.Prefill.PerTokenSquared, 2 * 32 * 4564 / (312e12 * 0.59)},
		{"step", one.Decode.Base, 16e9/(2039e9*0.70) + 32*0.0000234},
		{"per sequence", one.Decode.PerSequence, 0.000239},
		{"per token in the cache", one.Decode.PerKVToken, 131072 / (2039e9 * 0.38)},
		{"blocks", float64(one.Limits.KVBlocks), (72e9 - 16e9) / (131072 * 16)},
		{"per token on four", four.Prefill.PerToken, 16e9/(4*121e12*0.59) + 4*32*4564*0.75/65e9},
		{"step on four", four.Decode.Base, 16e9/(4*300e9*0.70) + 32*(0.0000234+2*0.0000704)},
		{"per token in the cache of four", four.Decode.PerKVToken, 131072 / (4 * 300e9 * 0.38)},
		{"blocks of four", float64(four.Limits.KVBlocks), (4*0.9*24e9 - 16e9) / (131072 * 16)},
	} {
		if math.Abs(c.got-c.want) > 1e-3*c.want {
			t.Errorf("%s: %g, want %g", c.of, c.got, c.want)
		}
	}
	limits := profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: one.Limits.KVBlocks, BlockSize: 16}
	if one.Limits != limits || one.AdapterLoad != (profile.Spread{}) {
		t.Errorf("limits are %+v, a load takes %+v", one.Limits, one.AdapterLoad)
	}
	if four.Limits.GPUAdapters != 2 || four.Limits.HostAdapters != 2 || four.AdapterLoad.Mean == 0 ||
		!strings.Contains(four.Source, "adapters are assumed") {
		t.Errorf("with adapters it is %+v", four)
	}
}

// Every GPU in the table gives a profile, or an error that the model does not fit. More GPUs never
// increase the time to read the weights.
func TestEveryTableEntry(t *testing.T) {
	for _, g := range known.GPUs {
		for _, parameters := range []string{"10M", "0.5B", "1B", "8B", "13B", "70B", "405B", "671B"} {
			for _, gpus := range []string{"1 x ", "2 x ", "8 x ", "64 x "} {
				p, err := Of(gpus+g.Name, parameters, 0)
				if err != nil {
					if !strings.Contains(err.Error(), "do not fit on "+gpus+g.Name) {
						t.Error(err)
					}
					continue
				}
				if err := p.Validate(); err != nil {
					t.Errorf("%s: %v", p.Name, err)
				}
				if again, err := profile.Parse(profile.Format(p)); err != nil || again != p {
					t.Errorf("%s is not read as it is written: %v", p.Name, err)
				}
			}
		}
	}
	_, err := Of("A10G", "70B", 0)
	if want := "70B of parameters do not fit on 1 x A10G: their weights take 140 GB, and 22 GB are for use; write more GPUs"; err == nil ||
		err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := Of("B300", "70B", 0); err == nil {
		t.Error("an unknown GPU is no error")
	}
	if _, err := Of("A10G", "many", 0); err == nil {
		t.Error("unknown parameters are no error")
	}
}

func TestGeneric(t *testing.T) {
	p, of := Generic(), func() profile.Profile { p, _ := Of("1 x A100-80GB", "8B", 0); return p }()
	if err := p.Validate(); err != nil || p.Decode != of.Decode || p.Prefill != of.Prefill || !strings.HasPrefix(p.Name, "Nobody said") {
		t.Errorf("%v: nobody's profile is %+v", err, p)
	}
}

// The errors stated in the table are those of predictions for the published rows, with each kind of
// work counted once. The published files are in the folder TRACE_DIR. Without that folder, the test
// uses the fits to these rows instead, at half and at all of their limits.
func TestStatedErrors(t *testing.T) {
	dir := os.Getenv("TRACE_DIR") //nolint:forbidigo // a test is a main
	var steps, prompts []float64
	miss := func(p *profile.Profile, w profile.Work, seconds float64) {
		share := math.Abs(p.StepTime(w)/seconds - 1)
		if w.Sequences > 0 {
			steps = append(steps, share)
		} else {
			prompts = append(prompts, share)
		}
	}
	for _, m := range known.Measured {
		on := known.GPUs[slices.IndexFunc(known.GPUs, func(g gpu) bool { return g.Name == m.GPU })]
		var p profile.Profile
		p.Prefill, p.Decode = roofline(on, m.GPUs, m.Billions)
		if dir == "" {
			is := profile.Profile{Prefill: m.Prefill, Decode: m.Decode}
			for size := 1; size <= 64; size *= 2 {
				w := profile.Work{Sequences: size, KVTokens: size * 576}
				miss(&p, w, is.StepTime(w))
				w = profile.Work{}
				w.AddPrompt(0, 128*size)
				miss(&p, w, is.StepTime(w))
			}
			continue
		}
		rows := published(t, dir, m)
		for w, seconds := range medians(rows) {
			miss(&p, w, seconds)
		}
		// The measurement in the table is the fit to its rows.
		f, err := fit.Of(rows)
		says := fmt.Sprintf("missed by %.1f %% for prompts and %.1f %% for steps", 100*f.PrefillError.Median, 100*f.StepError.Median)
		if err != nil || f.Prefill != m.Prefill || f.Decode != m.Decode || !strings.Contains(m.Source, says) {
			t.Errorf("%s\nThe rows come to %+v, %+v, %s; %v", m.Source, f.Prefill, f.Decode, says, err)
		}
	}
	slices.Sort(steps)
	slices.Sort(prompts)
	for _, c := range []struct {
		of          string
		got, stated float64
	}{
		{"steps", fit.Quantile(steps, 0.5), known.Errors.Steps.Median},
		{"steps, 90 %", fit.Quantile(steps, 0.9), known.Errors.Steps.P90},
		{"prompts", fit.Quantile(prompts, 0.5), known.Errors.Prompts.Median},
		{"prompts, 90 %", fit.Quantile(prompts, 0.9), known.Errors.Prompts.P90},
	} {
		t.Logf("%s: %.3f, stated %.3f", c.of, c.got, c.stated)
		if within := 0.01; dir != "" && math.Abs(c.got-c.stated) > within || c.got > 1.5*c.stated {
			t.Errorf("%s: the error is %.3f, and it says %.3f", c.of, c.got, c.stated)
		}
	}
}

// published returns the published rows from which a measurement in the table was fitted.
func published(t *testing.T, dir string, m measured) (rows []fit.Row) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "sageserve", "*.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, filepath.Join(dir, "splitwise", "perf_model.csv")) {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		all, err := fit.Read(file, f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			name := strings.ReplaceAll(strings.ToLower(r.Set.Model), "llama2", "llama-2")
			if r.Set.Hardware == strings.ToLower(m.GPU) && r.Set.TensorParallel == m.GPUs &&
				strings.Contains(strings.ToLower(m.Source), "to "+name+" of") {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// medians returns the median measured time for each kind of work.
func medians(rows []fit.Row) map[profile.Work]float64 {
	times := map[profile.Work][]float64{}
	for _, r := range rows {
		if r.PrefillSeconds > 0 {
			times[r.Prefill] = append(times[r.Prefill], r.PrefillSeconds)
		}
		times[r.Step] = append(times[r.Step], r.StepSeconds)
	}
	all := map[profile.Work]float64{}
	for w, of := range times {
		slices.Sort(of)
		all[w] = fit.Quantile(of, 0.5)
	}
	return all
}
