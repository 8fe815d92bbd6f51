package survey

import (
	"cmp"
	"fmt"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/fit"
)

// Batches returns the batch profile that results from the rows. head has the name and price of the
// profile. beside has notes to append to its source.
func (p Plan) Batches(head profile.Batches, s Subject, rows []Row, beside []string) *profile.Batches {
	points := p.Measured(rows)
	all := make([]profile.Batch, len(points))
	for i, at := range points {
		seconds := Of(rows, at)
		all[i] = profile.Batch{Size: at.Batch, Mean: profile.Rounded(Summarize(seconds).Mean), Quantiles: Quantiles(seconds)}
	}
	made := profile.NewBatches(cmp.Or(head.Name, s.set().String()), all...)
	made.Model, made.Hardware, made.Price = s.Model, s.Hardware, head.Price
	sizes := "1 row"
	if last := points[len(points)-1].Batch; last > 1 {
		sizes = fmt.Sprintf("1 to %d rows", last)
	}
	made.Source = fmt.Sprintf("Measured by headgate profile: %s, one request of %s at a time, %s.", s.API, sizes, p.precision(rows))
	for _, words := range beside {
		made.Source += " " + words
	}
	return made
}

// LLM fits an LLM profile to the rows. beside has notes to append to the profile's source. Errors
// are those of [fit.Of].
func (p Plan) LLM(name string, s Subject, rows []Row, limits profile.Limits, beside []string) (profile.Profile, error) {
	var points []fit.Row
	for _, at := range p.Points {
		for _, r := range rows {
			if r.Point == at {
				points = append(points, s.fitted(r))
			}
		}
	}
	f, err := fit.Of(points)
	if err != nil {
		return profile.Profile{}, err
	}
	made := f.Profile("", s.set(), limits)
	made.Name = cmp.Or(name, made.Name)
	frontendOverhead := "The engine reports no times of its own, so prefill includes the frontend overhead."
	if f.FrontendOverhead > 0 {
		frontendOverhead = "The frontend overhead is the time to first token minus the engine's own times."
	}
	made.Source = fmt.Sprintf("Measured by headgate profile: %s, prompts alone, at once and beside others, and steps, %s. Points that the fit had not seen: %s for prompts; %s for steps. %s%s",
		s.API, p.precision(rows), f.PrefillError, f.StepError, f.Mixed, frontendOverhead)
	for _, words := range beside {
		made.Source += " " + words
	}
	made.Source += " Loads take no time."
	return made, nil
}

// set converts the subject to a fit.Set.
func (s Subject) set() fit.Set {
	return fit.Set{Model: s.Model, Hardware: s.Hardware, TensorParallel: s.TensorParallel}
}

// fitted converts a row to a fit.Row.
func (s Subject) fitted(r Row) fit.Row {
	row := fit.Row{Set: s.set()}
	switch {
	case r.steps():
		row.Step, row.StepSeconds = profile.Work{Sequences: r.Batch, KVTokens: r.KV}, r.Seconds
		return row
	case r.Mixed():
		row.Mixed, row.MixedSeconds = profile.Work{Sequences: r.Beside, KVTokens: r.KV}, r.Seconds
		row.Mixed.AddPrompt(0, r.Prompt)
		row.Without, row.FirstToken = r.Step, r.FirstToken
		return row
	}
	row.Prompts = r.Batch
	row.Prefill.AddPrompt(0, r.Prompt)
	row.PrefillSeconds, row.FrontendOverhead = r.Seconds, r.FrontendOverhead
	return row
}
