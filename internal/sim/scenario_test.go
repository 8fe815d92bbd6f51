package sim

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/golden"
)

// Each file in testdata contains commands to a simulated engine, with the engine's responses.
//
//	new KEY=VALUE...     creates an engine. Keys for limits: seqs tokens blocks size gpu host.
//	                     Keys for seconds: prefill floor square decode sequence kv load slot
//	                     launch. slower=FACTOR applies to steps with adapters, and async=yes
//	                     sets asynchronous scheduling.
//	submit NAME KEY=...  submits a request. Keys: at, adapter, output, and
//	                     prompt=[SHARED:N+]N, where all requests that name SHARED have the
//	                     same first N tokens
//	load NAME at=T       loads an adapter into host memory
//	cancel NAME          cancels a request
//	run [N]              runs N steps, or until the engine is idle
//	counts, slots        prints the engine's counters, or the adapters in its slots
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		p := player{t: t, names: map[ID]string{}, ids: map[string]ID{}, words: map[string]uint32{}}
		return func(input string) string {
			var answers []string
			for line := range strings.SplitSeq(input, "\n") {
				answers = append(answers, p.do(strings.Fields(line))...)
			}
			return strings.Join(answers, "\n")
		}
	})
}

// player is the state of a scenario.
type player struct {
	t     *testing.T
	e     *Engine
	now   float64
	ids   map[string]ID
	names map[ID]string
	words map[string]uint32 // name of a part of a prompt -> number that makes its tokens unique
}

func (p *player) do(words []string) (answers []string) {
	options := map[string]string{}
	var args []string
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			options[key] = value
		} else {
			args = append(args, w)
		}
	}
	switch words[0] {
	case "new":
		p.start(options)
	case "submit":
		if err := p.submit(args[0], options); err != nil {
			return []string{err.Error()}
		}
	case "load":
		if _, err := p.e.Load(p.number(options["at"], p.now), args[0]); err != nil {
			return []string{err.Error()}
		}
	case "cancel":
		return []string{strconv.FormatBool(p.e.Cancel(p.ids[args[0]]))}
	case "run":
		steps := 1000
		if len(args) > 0 {
			steps = int(p.number(args[0], 0))
		}
		return p.run(steps)
	case "counts":
		c := p.e.Counts()
		return []string{fmt.Sprintf("running=%d waiting=%d deferred=%d kv=%.3f prefix=%d/%d preemptions=%d loads: slot=%d host=%d",
			c.Running, c.Waiting, c.Deferred, c.KVUsage, c.PrefixHits, c.PrefixQueries, c.Preemptions, c.SlotLoads, c.HostLoads)}
	case "slots":
		return []string{fmt.Sprintf("slots=%v host=%v active=%v", p.e.Slots(), p.e.Host(), p.e.Active(nil))}
	default:
		p.t.Fatalf("no such command: %q", words)
	}
	return nil
}

// start creates an engine with simple times: by default a step takes 1 s, plus 0.01 s per prompt
// token.
func (p *player) start(options map[string]string) {
	limit := func(key string, otherwise float64) int { return int(p.number(options[key], otherwise)) }
	e, err := New(profile.Profile{
		Prefill: profile.Prefill{
			Floor:           p.number(options["floor"], 0),
			Base:            1,
			PerToken:        p.number(options["prefill"], 0.01),
			PerTokenSquared: p.number(options["square"], 0),
		},
		Decode: profile.Decode{
			Base:            p.number(options["decode"], 1),
			PerSequence:     p.number(options["sequence"], 0),
			PerKVToken:      p.number(options["kv"], 0),
			AdapterSlowdown: p.number(options["slower"], 0),
		},
		LaunchOverhead:    p.number(options["launch"], 0),
		AsyncScheduling:   options["async"] != "",
		AdapterLoad:       profile.Spread{Mean: p.number(options["load"], 10)},
		AdapterActivation: profile.Spread{Mean: p.number(options["slot"], 3)},
		Limits: profile.Limits{
			MaxSequences:     limit("seqs", 4),
			MaxBatchedTokens: limit("tokens", 100),
			KVBlocks:         limit("blocks", 64),
			BlockSize:        limit("size", 4),
			GPUAdapters:      limit("gpu", 2),
			HostAdapters:     limit("host", 4),
		},
	}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.e, p.now = e, 0
}

func (p *player) submit(name string, options map[string]string) error {
	prompt := options["prompt"]
	var tokens []uint32
	if shared, rest, ok := strings.Cut(prompt, "+"); ok {
		of, n, _ := strings.Cut(shared, ":")
		tokens, prompt = p.text(tokens, of, n), rest
	}
	tokens = p.text(tokens, name, prompt)
	id, err := p.e.Submit(p.number(options["at"], p.now), Request{
		Adapter: options["adapter"],
		Prompt:  tokens,
		Output:  p.text(nil, "output of "+name, options["output"]),
	})
	p.ids[name], p.names[id] = id, name
	return err
}

// text appends n tokens of the prompt part with this name.
func (p *player) text(tokens []uint32, name, n string) []uint32 {
	if _, ok := p.words[name]; !ok {
		p.words[name] = uint32(len(p.words)+1) * 1000
	}
	for i := range int(p.number(n, 0)) {
		tokens = append(tokens, p.words[name]+uint32(i))
	}
	return tokens
}

func (p *player) run(steps int) (answers []string) {
	for range steps {
		at, ok := p.e.Next()
		if !ok {
			return append(answers, fmt.Sprintf("%.2f idle", p.now))
		}
		p.now = max(p.now, at)
		if line := p.tell(p.e.Advance(p.now)); line != "" {
			answers = append(answers, fmt.Sprintf("%.2f %s", p.now, line))
		}
	}
	return answers
}

func (p *player) tell(events []Event) string {
	var told []string
	for _, ev := range events {
		switch name := p.names[ev.ID]; ev.Kind {
		case Scheduled:
			told = append(told, name+" scheduled")
		case Token:
			told = append(told, fmt.Sprintf("%s#%d", name, ev.Index))
		case Finished:
			r := ev.Record
			told = append(told, fmt.Sprintf("%s finished(queue=%.2f prefill=%.2f decode=%.2f cached=%d)",
				name, r.Scheduled-r.Arrived, r.FirstToken-r.Scheduled, r.LastToken-r.FirstToken, r.Cached))
		case Preempted:
			told = append(told, name+" preempted")
		case HostLoaded:
			told = append(told, ev.Adapter+" in host memory")
		case SlotLoaded:
			told = append(told, ev.Adapter+" in a slot")
		}
	}
	return strings.Join(told, ", ")
}

func (p *player) number(text string, otherwise float64) float64 {
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}
