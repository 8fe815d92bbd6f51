// Package workload reads workloads from files: recorded requests, or rates from which requests are
// generated. The planner tests its plans on them, and benchmarks replay them.
//
// [Open] detects a file's format. Its result is a [Source], which returns a trace for each seed:
// for a recorded workload always the same one, except for rounded times, and for a generated one
// another sample of the same process.
//
// It is pure: the same bytes and seeds give the same queries.
package workload

import (
	"slices"
	"sort"
)

// Query is one request of a trace.
type Query struct {
	// At is its arrival time in seconds since the trace's beginning.
	At float64
	// Prompt and Output are its tokens; 0 if the trace does not state them.
	Prompt, Output int32
	// Model is its model; empty if the trace does not state it.
	Model string
}

// Source is a source of queries. It is immutable and safe for concurrent use.
type Source struct {
	// Name is for people: the base name of a file, or the text of a generated trace.
	Name string
	// About is one line for people: the format, the number of requests and their time span, and how
	// the trace is changed.
	About string
	// Generated says that queries are generated: another seed is another sample of the same
	// process.
	Generated bool

	queries func(seed uint64) []Query
}

// Queries returns the trace of a seed, sorted by time, starting at 0 or later. A complete recorded
// trace starts at 0, or within its rounding interval. A recorded trace has at least two queries; a
// generated one has a random number, possibly none. The caller may change the result.
func (s *Source) Queries(seed uint64) []Query { return s.queries(seed) }

// Split splits a recorded trace, sorted by time: the queries in the first share of its time, and
// the rest, with times from 0 again. A generated trace need not be split: another seed gives a test
// trace.
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

// Scaled returns the queries with the arrival rate multiplied by factor, which is above 0.
func Scaled(all []Query, factor float64) []Query {
	all = slices.Clone(all)
	for i := range all {
		all[i].At /= factor
	}
	return all
}
