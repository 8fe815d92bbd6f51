package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/internal/engine"
)

// LLM measures prompts and decode steps of an LLM. It is not safe for concurrent use.
type LLM struct {
	Server *Server
	API    survey.API
	Model  string
	Path   string
	Random *rand.Rand

	tokens survey.Tokenizer
	known  bool          // whether tokens per word have been measured
	reader engine.Reader // parses metrics pages
}

// Measure sends the requests of a point: one prompt alone, one prompt beside decoding requests, or
// several requests at once.
func (l *LLM) Measure(ctx context.Context, at survey.Point) (survey.Row, error) {
	if err := l.learn(ctx); err != nil {
		return survey.Row{}, err
	}
	switch {
	case at.Mixed():
		row, err := l.mixed(ctx, at)
		for tries := 1; tries < mixedTries && errors.As(err, new(*apart)); tries++ {
			row, err = l.mixed(ctx, at)
		}
		return row, err
	case at.Outputs == 1 && at.Batch == 1:
		return l.prompt(ctx, at)
	}
	streams := make([]survey.Stream, at.Batch)
	bodies := make([][]byte, at.Batch)
	for i := range bodies {
		bodies[i] = l.body(l.tokens.Words(at.Asked), at.Outputs)
	}
	group, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	for i := range streams {
		group.Go(func() (err error) {
			streams[i], err = l.Server.stream(ctx, l.Path, bodies[i], begun, nil)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return survey.Row{}, err
	}
	if at.Outputs == 1 {
		return survey.AtOnce(at, streams), nil
	}
	row, ok := survey.Together(at, streams)
	if !ok {
		return row, &apart{at}
	}
	return row, nil
}

// apart is the error if the engine ran the requests of a point one after another instead of
// together.
type apart struct{ at survey.Point }

func (a *apart) Error() string {
	return fmt.Sprintf("the engine does not compute %d requests at once for long enough: it takes fewer (say so with --max-sequences), or answers of %d tokens are too short (--output-tokens)",
		a.at.Batch+a.at.Beside, a.at.Outputs)
}

// begunShare sets when a prompt is sent beside decoding requests: after 1/begunShare of their
// output. By then the step time is known, and most of their output is still to come.
const begunShare = 4

// mixedTries is how often a prompt is sent beside decoding requests before giving up. An attempt
// can fail because tokens arrive late on a busy machine.
const mixedTries = 4

// mixed measures one prompt that is sent beside decoding requests.
func (l *LLM) mixed(ctx context.Context, at survey.Point) (survey.Row, error) {
	streams := make([]survey.Stream, at.Beside)
	bodies := make([][]byte, at.Beside)
	for i := range bodies {
		bodies[i] = l.body(survey.ShortWords, at.Outputs)
	}
	prompt, phase := l.body(l.tokens.Words(at.Asked), 1), l.Random.Float64()
	group, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	var running sync.WaitGroup
	running.Add(at.Beside)
	var step atomic.Int64 // approximate step time of the decoding requests, in nanoseconds
	for i := range streams {
		group.Go(func() (err error) {
			var once sync.Once
			defer once.Do(running.Done) // in case the output ends early
			streams[i], err = l.Server.stream(ctx, l.Path, bodies[i], begun, func(is *survey.Stream) {
				if n := len(is.Tokens); n > 1 && is.Tokens[n-1] >= at.Outputs/begunShare {
					step.Store(int64((is.At[n-1] - is.At[0]) / float64(is.Tokens[n-1]-is.Tokens[0]) * float64(time.Second)))
					once.Do(running.Done)
				}
			})
			return err
		})
	}
	var is survey.Stream
	var sent float64
	group.Go(func() (err error) {
		running.Wait()
		time.Sleep(time.Duration(phase * float64(step.Load()))) // wait for a random part of the step that has just begun
		sent = time.Since(begun).Seconds()
		is, err = l.Server.stream(ctx, l.Path, prompt, begun, nil)
		return err
	})
	if err := group.Wait(); err != nil {
		return survey.Row{}, err
	}
	row, ok := survey.Mixed(at, streams, is.Prompt, sent, is.FirstToken())
	if !ok {
		return row, &apart{at}
	}
	return row, nil
}

// prompt measures one prompt alone.
func (l *LLM) prompt(ctx context.Context, at survey.Point) (survey.Row, error) {
	before := l.counted(ctx)
	is, err := l.Server.stream(ctx, l.Path, l.body(l.tokens.Words(at.Asked), 1), time.Now(), nil)
	if err != nil {
		return survey.Row{}, err
	}
	row := survey.Row{Point: at, Seconds: is.FirstToken(), Prompt: is.Prompt}
	row.FrontendOverhead = survey.FrontendOverhead(row.Seconds, before, l.counted(ctx))
	return row, nil
}

// counted returns the counters on the engine's metrics page.
func (l *LLM) counted(ctx context.Context) engine.Totals {
	load, err := l.reader.Load(l.Server.Metrics(ctx), "")
	if err != nil {
		return engine.Totals{}
	}
	return load.Totals
}

// learn measures the tokens per word at its first call.
func (l *LLM) learn(ctx context.Context) error {
	if l.known {
		return nil
	}
	var tokens [2]int
	for i, n := range [2]int{survey.ShortWords, survey.LongWords} {
		is, err := l.Server.stream(ctx, l.Path, l.body(n, 1), time.Now(), nil)
		if err != nil {
			return err
		}
		tokens[i] = is.Prompt
	}
	l.tokens, l.known = survey.TokenizerOf(tokens[0], tokens[1]), true
	return nil
}

func (l *LLM) body(words, outputs int) []byte {
	return survey.PromptBody(l.Random, l.API, l.Model, words, outputs)
}
