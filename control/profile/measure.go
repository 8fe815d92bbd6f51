package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/profile/probe"
	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/profile"
)

// measurement contains the flags of "headgate profile".
type measurement struct {
	url, model, api, path, body string
	llm                         bool
	batches                     []int
	maxBatch                    int
	prompts, concurrency        []int
	longest                     bool // also measure a prompt that nearly fills a step's token budget
	outputs                     int
	warmUp                      int
	rule                        survey.Rule
	limit, timeout              time.Duration
	output                      string
	name, hardware              string
	price                       float64
	parallel                    int
	limits                      profile.Limits
	tokenFile                   string
	dial                        probe.Dial
}

func (m *measurement) register(fs *cli.FlagSet) {
	fs.Group("The server")
	fs.StringVar(&m.url, "url", "", "measure the server at this `URL`, http://HOST:PORT")
	fs.StringVar(&m.model, "model", "", "measure this `MODEL` (default the only one of an OpenAI server)")
	fs.StringVar(&m.api, "api", "", "use this `API`: v2, embeddings, completions or chat (default: detected)")
	fs.BoolVar(&m.llm, "llm", false, "measure an LLM; short for --api completions")
	fs.StringVar(&m.path, "path", "", "send requests to this `PATH` (default that of the API)")
	fs.StringVar(&m.body, "body", "",
		"batch copies of the single-item request in this `FILE` (default: made from the metadata of the model, or random texts)")
	fs.Group("What to measure")
	fs.IntSliceVar(&m.batches, "batches", nil, "measure batches of these `SIZES`, starting with 1 (default: see --max-batch)")
	fs.IntVar(&m.maxBatch, "max-batch", 64, "measure batches of 1, 2, 4 and so on up to this `SIZE`")
	fs.IntSliceVar(&m.prompts, "prompt-tokens", []int{16, 128, 512, 2048},
		"measure LLM prompts of these numbers of `TOKENS`; by default the longest nearly fills a step of --max-batched-tokens, or of 2048 without it")
	fs.IntVar(&m.outputs, "output-tokens", 64, "measure decode steps of an LLM with outputs of this many `TOKENS`")
	fs.IntSliceVar(&m.concurrency, "concurrency", []int{1, 4, 16, 64},
		"measure decode steps of an LLM with these numbers of concurrent `REQUESTS`")
	fs.IntVar(&m.warmUp, "warmup-requests", 5, "send this many `REQUESTS` of each size before measuring it")
	fs.Group("How often")
	fs.Float64Var(&m.rule.Precision, "precision", 0.03, "measure until half of the 95 % confidence interval is this `SHARE` of the mean")
	fs.IntVar(&m.rule.Least, "min-samples", 20,
		"take at least this many `SAMPLES` of each size; a quarter for decode steps, since each sample has many")
	fs.IntVar(&m.rule.Most, "max-samples", 1000, "take at most this many `SAMPLES` of each size")
	fs.DurationVar(&m.limit, "time-limit", 2*time.Minute, "measure each size for about this `TIME` at most")
	fs.DurationVar(&m.timeout, "timeout", time.Minute, "fail if a request takes longer than this `TIME`")
	fs.Group("The profile")
	fs.StringVarP(&m.output, "output", "o", "",
		"write the profile to this `FILE`, and each measurement to a .csv file beside it (default: print the profile)")
	fs.StringVar(&m.name, "name", "", "`NAME` of the profile (default the model on its hardware)")
	fs.StringVar(&m.hardware, "hardware", "", "`HARDWARE` of the server, such as a100, for the profile")
	fs.Float64Var(&m.price, "price", 0, "`PRICE` per replica and hour, for a batch profile")
	fs.IntVar(&m.parallel, "tensor-parallel", 0, "number of `GPUS` of the LLM engine, for the profile")
	fs.IntVar(&m.limits.MaxSequences, "max-sequences", 0,
		"largest batch of the LLM engine in `REQUESTS`: vLLM's max_num_seqs (default: assumed)")
	fs.IntVar(&m.limits.MaxBatchedTokens, "max-batched-tokens", 0,
		"`TOKENS` per step of the LLM engine: vLLM's max_num_batched_tokens (default: assumed for the profile; 2048 while measuring)")
	fs.IntVar(&m.limits.KVBlocks, "kv-blocks", 0, "`BLOCKS` of the KV cache of the LLM engine (default: from its metrics, or assumed)")
	fs.IntVar(&m.limits.BlockSize, "block-size", 0, "`TOKENS` per KV-cache block (default: from the metrics, or assumed)")
	fs.StringVar(&m.tokenFile, "engine-token-file", "", "send the bearer token in this `FILE`")
}

// check returns an error if the flags are invalid.
func (m *measurement) check(fs *pflag.FlagSet) error {
	if m.llm {
		if m.api != "" && !survey.API(m.api).Generates() {
			return fmt.Errorf("--llm conflicts with --api %s", m.api)
		}
		if m.api == "" {
			m.api = string(survey.Completions)
		}
	}
	m.rule.Limit = m.limit.Seconds()
	m.longest = !fs.Changed("prompt-tokens")
	if !fs.Changed("batches") {
		m.batches = survey.Sizes(max(1, m.maxBatch))
	}
	switch {
	case m.api != "" && !slices.Contains(survey.APIs, survey.API(m.api)):
		return fmt.Errorf("--api %q: want v2, embeddings, completions or chat", m.api)
	case m.maxBatch < 1:
		return fmt.Errorf("--max-batch %d: want at least 1", m.maxBatch)
	case fs.Changed("batches") && fs.Changed("max-batch"):
		return errors.New("--batches conflicts with --max-batch: use one of them")
	case !survey.Ascending(m.batches) || m.batches[0] != 1:
		return fmt.Errorf("--batches %v: want ascending sizes that start with 1, such as 1,2,4,8", m.batches)
	case !survey.Ascending(m.prompts):
		return fmt.Errorf("--prompt-tokens %v: want lengths in ascending order, such as 16,128,512", m.prompts)
	case !survey.Ascending(m.concurrency):
		return fmt.Errorf("--concurrency %v: want ascending numbers, such as 1,4,16", m.concurrency)
	case m.outputs < 8:
		return fmt.Errorf("--output-tokens %d: want at least 8, to measure the steps between tokens", m.outputs)
	case m.warmUp < 0:
		return fmt.Errorf("--warmup-requests %d: want 0 or more", m.warmUp)
	case !(m.rule.Precision > 0 && m.rule.Precision < 1):
		return fmt.Errorf("--precision %v: want a share of the mean, such as 0.03", m.rule.Precision)
	case m.rule.Least < 3 || m.rule.Most < m.rule.Least:
		return fmt.Errorf("--min-samples %d and --max-samples %d: want at least 3, and a maximum that is not below the minimum",
			m.rule.Least, m.rule.Most)
	case m.limit <= 0 || m.timeout <= 0:
		return errors.New("--time-limit and --timeout must be above 0, such as 1m")
	case m.parallel < 0 || m.limits.MaxSequences < 0 || m.limits.MaxBatchedTokens < 0 || m.limits.KVBlocks < 0 || m.limits.BlockSize < 0:
		return errors.New("--tensor-parallel, --max-sequences, --max-batched-tokens, --kv-blocks and --block-size must be 0 (unknown) or more")
	case m.path != "" && !strings.HasPrefix(m.path, "/"):
		return fmt.Errorf("--path %s: want a path that begins with /", m.path)
	case m.body != "" && survey.API(m.api).Generates():
		return errOnlyBatches
	case !(m.price >= 0) || math.IsInf(m.price, 0):
		return fmt.Errorf("--price %v: want a number from 0 on", m.price)
	}
	return m.checkOutput()
}

// checkOutput returns an error if the command cannot write to the output file.
func (m *measurement) checkOutput() error {
	if m.output != "" && strings.EqualFold(survey.RecordName(m.output), m.output) {
		return fmt.Errorf("-o %s: want another name, such as profile.yaml: measurements are written to the .csv file of that name",
			m.output)
	}
	return nil
}

var errOnlyBatches = errors.New("--body is for V2 and embeddings only: LLM prompts are generated")

// prepare checks the files that the command needs before it measures anything: a measurement takes
// minutes to hours.
func (m *measurement) prepare() error {
	if m.body != "" {
		if _, err := os.ReadFile(m.body); err != nil {
			return fmt.Errorf("--body: %w", err)
		}
	}
	if m.output == "" {
		return nil
	}
	_, missing := os.Stat(m.output)
	f, err := os.OpenFile(m.output, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // people read it
	if err != nil {
		return fmt.Errorf("-o: cannot write the profile: %w", err)
	}
	err = f.Close()
	if missing != nil { // written only when the measurements are done
		err = errors.Join(err, os.Remove(m.output))
	}
	return err
}

// run takes the measurements that the record lacks, and writes the profile.
func (m *measurement) run(ctx context.Context, out, progress io.Writer) error {
	if err := m.prepare(); err != nil {
		return err
	}
	token := ""
	if m.tokenFile != "" {
		file, err := engineclient.OpenToken(m.tokenFile, slog.Default())
		if err != nil {
			return fmt.Errorf("--engine-token-file: %w", err)
		}
		token = file.Token()
	}
	server, err := probe.NewServer(m.url, token, m.timeout, m.dial)
	if err != nil {
		return err
	}
	defer server.Close()
	api, model, err := server.Find(ctx, survey.API(m.api), m.model)
	if err != nil {
		return err
	}
	subject := survey.Subject{Model: model, Hardware: m.hardware, API: api}
	path := m.path
	if path == "" {
		path = api.Path(model)
	}
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) //nolint:gosec // new prompts in each run, no secrets
	if api.Generates() {
		switch {
		case m.body != "":
			return errOnlyBatches
		case m.price > 0:
			return errors.New("--price is for batch profiles only")
		}
		subject.TensorParallel = m.parallel
		return m.measureLLM(ctx, subject, &probe.LLM{Server: server, API: api, Model: model, Path: path, Random: random}, out, progress)
	}
	by := &probe.Batch{Server: server, API: api, Model: model, Path: path, Random: random}
	switch {
	case m.body != "":
		if by.Body, err = os.ReadFile(m.body); err != nil {
			return err
		}
		if _, err := survey.Repeat(api, by.Body, 1); err != nil {
			return fmt.Errorf("--body %s: %w", m.body, err)
		}
	case api == survey.V2:
		if by.Body, err = server.OneRow(ctx, model); err != nil {
			return err
		}
	}
	subject.Request = survey.Digest(path, by.Body)
	return m.measureBatches(ctx, subject, by, out, progress)
}

func (m *measurement) measureBatches(ctx context.Context, s survey.Subject, by *probe.Batch, out, progress io.Writer) error {
	plan := survey.OfBatches(m.batches, m.rule)
	rows, left, err := m.survey(ctx, probe.Run{Plan: plan, Probe: by}, s, progress)
	if err != nil {
		return err
	}
	made := plan.Batches(profile.Batches{Name: m.name, Price: m.price}, s, rows, left)
	return m.write(out, profile.FormatBatches(made))
}

// smallBudget is assumed if the token budget of a step is unknown. It is vLLM's default on all but
// the largest GPUs. A prompt above the real budget would take several steps, but would be recorded
// as one long step.
const smallBudget = 2048

func (m *measurement) measureLLM(ctx context.Context, s survey.Subject, by *probe.LLM, out, progress io.Writer) error {
	limits, words := survey.Limits(m.limits, by.Server.Metrics(ctx), assumed)
	planned := limits
	if m.limits.MaxBatchedTokens == 0 { // the engine does not report its budget
		planned.MaxBatchedTokens = min(limits.MaxBatchedTokens, smallBudget)
	}
	most := 0
	if m.longest {
		m.prompts, most = survey.Inputs(m.prompts, planned.MaxBatchedTokens), m.prompts[len(m.prompts)-1]
	}
	if longest := m.prompts[len(m.prompts)-1]; longest > limits.MaxBatchedTokens {
		return fmt.Errorf("--prompt-tokens %v: the engine computes at most %d tokens per step, so a longer prompt takes several steps: "+
			"leave it out, or set --max-batched-tokens", m.prompts, limits.MaxBatchedTokens)
	}
	plan := survey.OfLLM(m.prompts, most, m.outputs, m.concurrency, planned, m.rule)
	rows, left, err := m.survey(ctx, probe.Run{Plan: plan, Probe: by}, s, progress)
	if err != nil {
		return err
	}
	made, err := plan.LLM(m.name, s, rows, limits, append(left, words))
	if err != nil {
		return err
	}
	return m.write(out, profile.Format(made))
}

// survey takes the planned measurements that are not in the record, and appends them to it. It
// returns all rows, and messages about points that were left out.
func (m *measurement) survey(ctx context.Context, r probe.Run, s survey.Subject, progress io.Writer) ([]survey.Row, []string, error) {
	kept, rows, err := openRecord(m.output, s)
	if err != nil {
		return nil, nil, err
	}
	defer kept.close()
	if n := r.Plan.Done(rows); n > 0 {
		fmt.Fprintf(progress, "%d of %d points are in %s already\n", n, len(r.Plan.Points), kept.name)
	}
	bar := newBar(progress)
	r.WarmUp, r.Keep, r.Tell = m.warmUp, kept.keep, bar.tell
	all, left, err := r.Measure(ctx, rows)
	bar.end()
	for _, words := range left {
		fmt.Fprintln(progress, words)
	}
	if err == nil {
		return all, left, nil
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if kept.file != nil && len(all) > 0 {
		err = fmt.Errorf("%w; measurements are in %s, and the same command resumes from there", err, kept.name)
	}
	return nil, nil, err
}

// write writes the text of a profile to the output file, or prints it to out without such a file.
func (m *measurement) write(out io.Writer, text []byte) error {
	if m.output != "" {
		return os.WriteFile(m.output, text, 0o644) //nolint:gosec // people read it
	}
	_, err := out.Write(text)
	return err
}
