package workload

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// readRates reads a trace in the format [Rates].
func readRates(r io.Reader, o Options) (trace, error) {
	t, err := newTable(r, minuteColumn, secondsColumn, timeColumn, rateColumn, cvColumn, modelColumn, promptColumn, outputColumn)
	if err != nil {
		return trace{}, err
	}
	begins := slices.DeleteFunc([]string{minuteColumn, secondsColumn, timeColumn}, func(c string) bool { return !t.has(c) })
	if len(begins) != 1 || !t.has(rateColumn) {
		return trace{}, fmt.Errorf("line 1: windows begin once and have a rate: write such as %s,%s, "+
			"with one of %s, %s (numbers) and %s (such as 2006-01-02T15:04:05Z)",
			minuteColumn, rateColumn, minuteColumn, secondsColumn, timeColumn)
	}
	var models []*steps
	byName := map[string]*steps{}
	var c clock // converts values of the column time
	err = t.each(func() error {
		at, errAt := 0.0, error(nil)
		if begins[0] == timeColumn {
			moment, err := t.moment(timeColumn)
			if errAt = err; err == nil {
				at, errAt = c.at(moment)
			}
		} else if at, errAt = t.number(begins[0]); errAt == nil {
			if begins[0] == minuteColumn {
				at *= 60
			}
			errAt = inSeconds(at)
		}
		cv := o.cv()
		var errCV error
		if t.cell(cvColumn) != "" {
			cv, errCV = t.number(cvColumn)
		}
		rate, errRate := t.number(rateColumn)
		prompt, errPrompt := t.tokens(promptColumn)
		output, errOutput := t.tokens(outputColumn)
		if err := errors.Join(errAt, errCV, errRate, errPrompt, errOutput); err != nil {
			return err
		}
		shape, err := shapeOf(cv)
		if err != nil {
			return err
		}
		name := t.cell(modelColumn)
		is := byName[name]
		if is == nil {
			is = &steps{model: strings.Clone(name)}
			byName[is.model], models = is, append(models, is)
		}
		return is.add(step{at, Window{Rate: rate, Shape: shape}, prompt, output})
	})
	if err != nil {
		return trace{}, err
	}
	return processesOf(models, begins[0] == minuteColumn)
}

// cv returns the coefficient of variation for traces that have none.
func (o Options) cv() float64 {
	if o.CV == 0 {
		return 1
	}
	return o.CV
}

// step is a window with its start time, and with the numbers of tokens of each request.
type step struct {
	at float64
	Window
	prompt, output int32
}

// steps contains the windows of one model. Each window ends when the next one begins.
type steps struct {
	model string
	all   []step
}

func (s *steps) add(next step) error {
	if n := len(s.all); n > 0 {
		before := &s.all[n-1]
		if before.Seconds = next.at - before.at; !(before.Seconds > 0) {
			return fmt.Errorf("a window begins at %g s, and the one before it at %g s: sort the lines by time, each time once for a model",
				next.at, before.at)
		}
		if before.prompt != next.prompt || before.output != next.output {
			return errors.New("the tokens of a model stay: write the same in all its lines")
		}
	}
	s.all = append(s.all, next)
	return next.flaw()
}

// processesOf converts the windows of models to processes. All processes begin at the start of the
// earliest window. A model's last window is as long as the window before it. If a model has a
// single window and byMinute is true, the window is a minute long.
func processesOf(models []*steps, byMinute bool) (t trace, err error) {
	first := math.Inf(1)
	for _, s := range models {
		first = min(first, s.all[0].at)
	}
	for _, s := range models {
		last := &s.all[len(s.all)-1]
		switch {
		case len(s.all) > 1:
			last.Seconds = s.all[len(s.all)-2].Seconds
		case byMinute:
			last.Seconds = 60
		default:
			return t, fmt.Errorf("nothing says when the only window ends (model %q): write a second line, if need be of the rate 0",
				s.model)
		}
		p := process{model: s.model, prompt: last.prompt, output: last.output}
		if idle := s.all[0].at - first; idle > 0 {
			p.windows = append(p.windows, Window{Seconds: idle})
		}
		for _, w := range s.all {
			p.windows = append(p.windows, w.Window)
		}
		t.processes = append(t.processes, p)
	}
	if len(models) == 0 {
		return t, errors.New("it has no lines but the first: write one for each window")
	}
	t.about = count(t.processes)
	return t, nil
}

// count describes how many models the processes have.
func count(processes []process) string {
	if len(processes) == 1 {
		return "one model"
	}
	return fmt.Sprintf("%d models", len(processes))
}
