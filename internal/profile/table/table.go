// Package table provides an estimated profile for hardware that was not measured. The inputs are a
// model's number of parameters, the kind of GPU and the number of GPUs.
//
// If measurements of that combination were published, the profile is a fit to these. Otherwise it
// is a roofline model: a decode step reads all weights from GPU memory, and a prompt computes with
// all of them. The figures of data sheets are multiplied by the efficiency that published
// measurements show. The model is assumed to be dense, in BF16, with grouped-query attention of 8
// heads of size 128. The profile's source states the error.
//
// The package is pure: it reads only its own embedded table.
package table

import (
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/internal/profile"
)

//go:embed table.yaml
var embedded []byte

// known is the content of table.yaml.
var known = func() (t content) {
	if err := yaml.UnmarshalStrict(embedded, &t); err != nil {
		panic(fmt.Sprintf("table.yaml: %v", err)) // cannot happen: the file is embedded and tested
	}
	return t
}()

type content struct {
	GPUs     []gpu      `json:"gpus"`
	Layers   []depth    `json:"layers"`
	Factors  factors    `json:"factors"`
	Errors   errorsOf   `json:"errors"`
	Measured []measured `json:"measured"`
}

type gpu struct {
	Name      string   `json:"name"`
	Memory    float64  `json:"memory"`    // GB per GPU
	Bandwidth float64  `json:"bandwidth"` // GB/s of GPU memory
	TFLOPS    float64  `json:"tflops"`
	Also      []string `json:"also"`
}

type depth struct {
	Billions float64 `json:"billions"`
	Layers   float64 `json:"layers"`
}

// factors are the efficiency factors in table.yaml, which explains them.
type factors struct {
	Bandwidth      float64 `json:"bandwidth"`
	CacheBandwidth float64 `json:"cacheBandwidth"`
	FLOPS          float64 `json:"flops"`
	Link           float64 `json:"link"` // GB/s between GPUs
	Layer          float64 `json:"layer"`
	LayerDoubled   float64 `json:"layerDoubled"`
	LayerPrompt    float64 `json:"layerPrompt"`
	LayerFloor     float64 `json:"layerFloor"`
	Sequence       float64 `json:"sequence"`
}

type errorsOf struct {
	Steps   errorOf `json:"steps"`
	Prompts errorOf `json:"prompts"`
}

// errorOf contains relative errors of predictions. LeftOut is the median error for a set of
// measurements when the factors were computed without that set.
type errorOf struct {
	Median  float64 `json:"median"`
	P90     float64 `json:"p90"`
	LeftOut float64 `json:"leftOut"`
}

type measured struct {
	GPU      string          `json:"gpu"`
	GPUs     int             `json:"gpus"`
	Billions float64         `json:"billions"`
	Source   string          `json:"source"`
	Prefill  profile.Prefill `json:"prefill"`
	Decode   profile.Decode  `json:"decode"`
}

// Properties of the assumed model, and vLLM's defaults on GPUs.
const (
	bytesPerWeight = 2               // weights in BF16
	kvBytes        = 2 * 2 * 8 * 128 // bytes per token and layer: keys and values in BF16, 8 heads of size 128
	usedMemory     = 0.9             // vLLM's gpu_memory_utilization
	blockSize      = 16              // vLLM's block_size
	maxSequences   = 256             // vLLM's max_num_seqs
	batchedTokens  = 8192            // vLLM's max_num_batched_tokens
	maxGPUs        = 64              // maximum number of GPUs that share one model
	leastBillions  = 0.01            // minimum number of parameters of a model, in billions
	mostBillions   = 10000
)

// near is the largest ratio between the parameters of two models that are treated as equally large.
const near = 1.1

// Hardware is a number of GPUs of one kind that share a model.
type Hardware struct {
	GPUs int
	// Accelerator is the GPU's name in the table, such as A100-80GB.
	Accelerator string
}

// String formats the hardware, such as 4 x A100-80GB.
func (h Hardware) String() string { return fmt.Sprintf("%d x %s", h.GPUs, h.Accelerator) }

var (
	hardwareForm  = regexp.MustCompile(`^(?:(\d+)\s*[xX×*]?\s*)?(\pL.*)$`)
	parameterForm = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([bBmM])$`)
	// needless matches words in Node labels that are not part of the GPU's name.
	needless = regexp.MustCompile(`^(NVIDIA|TESLA|GEFORCE|GPU|SXM\d?|PCIE|HBM\d?E?|NVL)$`)
)

// ParseHardware parses hardware as people and Node labels write it, such as "4 x A100-80GB",
// "4xH100", "l4" or "NVIDIA-A100-SXM4-80GB". Without a number it returns one GPU. If the GPU is
// unknown, the error lists the known ones.
func ParseHardware(text string) (Hardware, error) {
	parts := hardwareForm.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return Hardware{}, fmt.Errorf("hardware %q: write how many GPUs of which kind share one model, such as 4 x A100-80GB; known are %s",
			text, accelerators())
	}
	h := Hardware{GPUs: 1}
	if number := parts[1]; number != "" {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > maxGPUs {
			return Hardware{}, fmt.Errorf("hardware %q: %s GPUs share no model: write 1 to %d", text, number, maxGPUs)
		}
		h.GPUs = n
	}
	name := plainName(parts[2])
	for _, g := range known.GPUs {
		if slices.ContainsFunc(append([]string{g.Name}, g.Also...), func(n string) bool { return plainName(n) == name }) {
			h.Accelerator = g.Name
			return h, nil
		}
	}
	return Hardware{}, fmt.Errorf("hardware %q: no GPU in the table is called %q; known are %s", text, strings.TrimSpace(parts[2]),
		accelerators())
}

// plainName normalizes the name of a GPU.
func plainName(text string) string {
	words := strings.FieldsFunc(strings.ToUpper(text), func(r rune) bool { return r == '-' || r == '_' || r == ' ' })
	words = slices.DeleteFunc(words, needless.MatchString)
	return strings.Join(words, "")
}

// accelerators returns the names of all known GPUs, for messages.
func accelerators() string {
	var names []string
	for _, g := range known.GPUs {
		names = append(names, g.Name)
	}
	return strings.Join(names, ", ")
}

// ParseParameters parses the size of a model, such as "70B" or "500M", and returns the number of
// parameters in billions.
func ParseParameters(text string) (billions float64, err error) {
	if parts := parameterForm.FindStringSubmatch(strings.TrimSpace(text)); parts != nil {
		billions, err = strconv.ParseFloat(parts[1], 64)
		if strings.ToUpper(parts[2]) == "M" {
			billions /= 1000
		}
		if err == nil && billions >= leastBillions && billions <= mostBillions {
			return billions, nil
		}
	}
	return 0, fmt.Errorf("parameters %q: write how many the model has, such as 8B, 70B or 500M", text)
}

// Of returns the estimated profile of a model. parameters is its size, such as "70B", hardware is
// such as "4 x A100-80GB", and adapters is the number of adapter slots. Errors say what to write. A
// model that does not fit into GPU memory is an error.
func Of(hardware, parameters string, adapters int) (profile.Profile, error) {
	h, err := ParseHardware(hardware)
	if err != nil {
		return profile.Profile{}, err
	}
	billions, err := ParseParameters(parameters)
	if err != nil {
		return profile.Profile{}, err
	}
	on := known.GPUs[slices.IndexFunc(known.GPUs, func(g gpu) bool { return g.Name == h.Accelerator })]
	left := usedMemory*on.Memory*float64(h.GPUs) - bytesPerWeight*billions // GB of GPU memory for the KV cache
	blocks := int(left * 1e9 / (kvBytes * layersOf(billions) * blockSize))
	if blocks < 2 {
		return profile.Profile{},
			fmt.Errorf("%s of parameters do not fit on %s: their weights take %.0f GB, and %.0f GB are for use; write more GPUs",
				strings.TrimSpace(parameters), h, bytesPerWeight*billions, usedMemory*on.Memory*float64(h.GPUs))
	}
	p := profile.Profile{
		Name: fmt.Sprintf("%s of parameters on %s", strings.TrimSpace(parameters), h),
		Limits: profile.Limits{
			MaxSequences: maxSequences, MaxBatchedTokens: batchedTokens, KVBlocks: blocks, BlockSize: blockSize,
			GPUAdapters: adapters, HostAdapters: adapters,
		},
	}
	if i := slices.IndexFunc(known.Measured, func(m measured) bool {
		return m.GPU == h.Accelerator && m.GPUs == h.GPUs && max(m.Billions/billions, billions/m.Billions) < near
	}); i >= 0 {
		m := known.Measured[i]
		p.Prefill, p.Decode, p.Source = m.Prefill, m.Decode, m.Source
	} else {
		p.Prefill, p.Decode = roofline(on, h.GPUs, billions)
		p.Source = fmt.Sprintf("By data sheets, with what of them arrived in measurements of Splitwise and SageServe. "+
			"These it misses by %.0f %% for prompts and %.0f %% for steps in the median; of a set that was left out, by %.0f %% and %.0f %%.",
			100*known.Errors.Prompts.Median, 100*known.Errors.Steps.Median, 100*known.Errors.Prompts.LeftOut,
			100*known.Errors.Steps.LeftOut)
	}
	p.Source += " Limits are vLLM's defaults, with a KV cache in what the weights leave of 90 % of the memory."
	if adapters > 0 {
		p.AdapterLoad, p.AdapterActivation = profile.Spread{Mean: 0.1, StdDev: 0.02}, profile.Spread{Mean: 0.01, StdDev: 0.001}
		p.Source += " The times of adapters are assumed."
	}
	return p, nil
}

// Generic returns the default profile: a model with 8 billion parameters on one A100 with 80 GB.
func Generic() profile.Profile {
	p, err := Of("A100-80GB", "8B", 0)
	if err != nil {
		panic(err) // cannot happen: a test checks that the table has this GPU
	}
	p.Name = "Nobody said which hardware: " + p.Name
	return p
}

// layersOf estimates a model's number of layers from its number of parameters.
func layersOf(billions float64) float64 {
	at, all := 1, known.Layers
	for at < len(all)-1 && billions > all[at].Billions {
		at++
	}
	a, b := all[at-1], all[at]
	share := math.Log(billions/a.Billions) / math.Log(b.Billions/a.Billions)
	return math.Round(max(1, a.Layers+share*(b.Layers-a.Layers)))
}

// roofline computes the terms of a profile from data sheets and efficiency factors.
func roofline(on gpu, gpus int, billions float64) (profile.Prefill, profile.Decode) {
	f, n := known.Factors, float64(gpus)
	parameters, layers := billions*1e9, layersOf(billions)
	width := math.Sqrt(parameters / (12 * layers)) // hidden size: a layer has about 12 square matrices of this size
	bandwidth, flops := n*on.Bandwidth*1e9, n*on.TFLOPS*1e12*f.FLOPS
	// Two times in each layer, every GPU gets the results of all other GPUs, in BF16.
	sent := 2 * 2 * layers * width * (1 - 1/n)
	prefill := profile.Prefill{
		Floor:           digits(f.LayerFloor * layers),
		Base:            digits(f.LayerPrompt * layers),
		PerToken:        digits(2*parameters/flops + sent/(f.Link*1e9)),
		PerTokenSquared: digits(2 * layers * width / flops), // attention scores and values, for half of all token pairs
	}
	decode := profile.Decode{
		Base:        digits(bytesPerWeight*parameters/(bandwidth*f.Bandwidth) + layers*(f.Layer+f.LayerDoubled*math.Log2(n))),
		PerSequence: f.Sequence,
		PerKVToken:  digits(kvBytes * layers / (bandwidth * f.CacheBandwidth)),
	}
	return prefill, decode
}

// digits rounds to four significant digits.
func digits(t float64) float64 {
	t, _ = strconv.ParseFloat(strconv.FormatFloat(t, 'g', 4, 64), 64) // cannot fail: the text is a formatted number
	return t
}
