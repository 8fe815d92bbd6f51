package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/api/admin"
)

// heldRow counts the requests that wait in extprocs, for one pool, band and reason.
type heldRow struct {
	pool, reason string
	band         int32
	requests     int
	oldest       float64 // seconds that the first of them has waited
}

// heldRows adds up the waiting requests of all extprocs. The highest band of each pool is first.
func heldRows(extprocs []Extproc) (rows []heldRow) {
	for _, x := range extprocs {
		for _, q := range x.Pools {
			for _, h := range q.Held {
				rows = add(rows, q.Name, h)
			}
		}
	}
	slices.SortFunc(rows, func(a, b heldRow) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), -cmp.Compare(a.band, b.band), cmp.Compare(a.reason, b.reason))
	})
	return rows
}

// add adds the waiting requests of one extproc to rows.
func add(rows []heldRow, pool string, h admin.Held) []heldRow {
	at := slices.IndexFunc(rows, func(r heldRow) bool { return r.pool == pool && r.band == h.Band && r.reason == h.Reason })
	if at < 0 {
		return append(rows, heldRow{pool, h.Reason, h.Band, h.Requests, h.OldestSeconds})
	}
	rows[at].requests += h.Requests
	rows[at].oldest = max(rows[at].oldest, h.OldestSeconds)
	return rows
}

// writeHeld prints the requests that wait in extprocs; nothing if none waits.
func (p page) writeHeld(out *strings.Builder) {
	rows := heldRows(p.extprocs)
	if len(rows) == 0 || len(p.models) > 0 || p.endpoint != "" {
		return
	}
	if out.Len() > 0 {
		out.WriteString("\n")
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WAITING IN EXTPROC\tBAND\tFOR\tREQUESTS\tOLDEST")
	for _, r := range rows {
		oldest := time.Duration(r.oldest * float64(time.Second)).Round(100 * time.Millisecond)
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%s\n", r.pool, r.band, r.reason, r.requests, oldest)
	}
	_ = t.Flush() // a write to memory does not fail
}
