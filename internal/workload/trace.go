// Package workload reads traces of requests. A file contains either recorded requests, or request
// rates from which requests are generated. The planner tests its plans with traces, and benchmarks
// replay them.
//
// [Open] detects a file's format and returns a [Source], which returns a trace for each seed. If
// the requests were recorded, all seeds give the same trace, unless times are rounded. If requests
// are generated, each seed gives another random sample of the same process.
//
// The package is pure: the same bytes and seed give the same queries.
package workload

import (
	"slices"
	"sort"
)

// Query is one request of a trace.
type Query struct {
	// At is the arrival time in seconds since the start of the trace.
	At float64
	// Prompt and Output are numbers of tokens; 0 if the trace does not contain them.
	Prompt, Output int32
	// Model is the name of the model; "" if the trace does not contain it.
	Model string
}

// Source returns the queries of a trace for each seed. It is immutable and safe for concurrent use.
type Source struct {
	// Name identifies the trace in messages: the base name of the file, or the text of a generated
	// trace.
	Name string
	// About describes the trace in one line: the format, the number of requests, their time span,
	// and how the trace was changed.
	About string
	// Generated is true if queries are generated: each seed then gives another random sample of the
	// same process.
	Generated bool

	queries func(seed uint64) []Query
}

// Queries returns the trace for a seed, sorted by time. A recorded trace has at least two queries.
// It starts at 0 or within its rounding interval; a selected part of a trace may start later. A
// generated trace starts at 0 or later and has a random number of queries, possibly none. The
// caller may change the result.
func (s *Source) Queries(seed uint64) []Query { return s.queries(seed) }

// Split splits a recorded trace, which is sorted by time, into two parts. plan has the queries in
// the first share of the trace's time. test has the rest, with times that start at 0. A generated
// trace need not be split, because another seed gives a test trace.
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

// Scaled returns the queries with their arrival rate multiplied by factor, which must be above 0.
func Scaled(all []Query, factor float64) []Query {
	all = slices.Clone(all)
	for i := range all {
		all[i].At /= factor
	}
	return all
}
