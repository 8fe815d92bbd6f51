package accesslog_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/outcome"
)

// budget is how many allocations a record may cost: one for each string of its outcome.
const budget = 10

func TestARecordCostsFewAllocations(t *testing.T) {
	for _, name := range []string{"decided", "refused", "client-gone", "replied"} {
		message := encode(t, message(record(t, name)))
		var all accesslog.Entries
		got := testing.AllocsPerRun(100, func() {
			if err := all.Decode(message); err != nil {
				t.Fatal(err)
			}
			all.Pass(func(outcome.Outcome) {}, func(outcome.Progress) {})
		})
		t.Logf("%s: %.0f allocations", name, got)
		if got > budget {
			t.Errorf("%s: a record costs %.0f allocations, want at most %d", name, got, budget)
		}
	}
}

func BenchmarkParseRecord(b *testing.B) {
	message := encode(b, message(record(b, "decided")))
	ignore, ignoreToo := func(outcome.Outcome) {}, func(outcome.Progress) {}
	b.Run("impl=plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := plain(message, ignore, ignoreToo); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("impl=headgate", func(b *testing.B) {
		b.ReportAllocs()
		var all accesslog.Entries
		for b.Loop() {
			if err := all.Decode(message); err != nil {
				b.Fatal(err)
			}
			all.Pass(ignore, ignoreToo)
		}
	})
}
