// Package workload is requests as files have them: recorded ones, and rates at which they are drawn. A planner tries what it plans on them, and
// benches replay them.
//
// [Open] finds out what a file is by what is in it. What it opens is a [Source], of which each seed makes a trace: of a recorded one it is
// always the same, but for times that the file rounds, and of a generated one another trace of the same process.
//
// It is pure: the same bytes and seeds give the same queries.
package workload

import (
	"slices"
	"sort"
)

// Query is one request of a trace.
type Query struct {
	// At is when it comes, in seconds since the trace's beginning.
	At float64
	// Prompt and Output are its tokens; 0 where the trace says nothing.
	Prompt, Output int32
	// Model is whom it is for; empty where the trace says nothing.
	Model string
}

// Source is where queries come from. It does not change, and is safe for concurrent use.
type Source struct {
	// Name is for people: the base name of a file, or what a generated trace was asked for by.
	Name string
	// About is one line for people: the format, how many requests there are in which time, and what is done to them.
	About string
	// Generated says that queries are drawn: another seed is another trace of the same process.
	Generated bool

	queries func(seed uint64) []Query
}

// Queries returns the trace of a seed, sorted by time, none before 0. The first of a whole recorded trace comes at 0, or within the time to which
// the file rounds. A recorded trace has at least two; a generated one has about as many as it is to have, by chance perhaps none. The caller
// may change what is returned.
func (s *Source) Queries(seed uint64) []Query { return s.queries(seed) }

// Split cuts queries, sorted by time, of a recorded trace: those in the first share of its time, and the rest, whose times begin anew at 0. A
// generated trace needs no cut: another seed tests what one was planned by.
func Split(all []Query, share float64) (plan, test []Query) {
	if len(all) == 0 {
		return nil, nil
	}
	cut := share * all[len(all)-1].At
	n := sort.Search(len(all), func(i int) bool { return all[i].At >= cut })
	test = slices.Clone(all[n:])
	for i := range test {
		test[i].At -= cut
	}
	return slices.Clone(all[:n]), test
}

// Scaled returns the same queries with all coming factor times as fast; factor is above 0.
func Scaled(all []Query, factor float64) []Query {
	all = slices.Clone(all)
	for i := range all {
		all[i].At /= factor
	}
	return all
}
