package ring_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// found returns the records of an id, the latest first.
func found(r *ring.Ring, id string) (all []string) {
	r.Find(id, func(decision, outcome []byte) bool {
		all = append(all, string(decision)+"|"+string(outcome))
		return true
	})
	return all
}

func TestRingForgetsTheOldest(t *testing.T) {
	r := ring.New(3, 1<<20)
	for i := range 5 {
		if number := r.Add(fmt.Append(nil, "id", i%2), fmt.Appendf(nil, "d%d", i)); number != uint64(i)+1 {
			t.Fatalf("the number is %d", number)
		}
	}
	r.SetOutcome(1, []byte("forgotten"))
	r.SetOutcome(0, []byte("never added"))
	r.SetOutcome(9, []byte("not yet added"))
	r.SetOutcome(3, []byte("first"))
	r.SetOutcome(3, []byte("second"))
	r.SetOutcome(4, nil)
	if got := fmt.Sprint(found(r, "id0"), found(r, "id1"), found(r, "id2")); got != "[d4| d2|second] [d3|] []" {
		t.Errorf("it has %s", got)
	}
	r.Find("id0", func(decision, _ []byte) bool {
		if string(decision) != "d4" {
			t.Error("Find goes on after false")
		}
		return false
	})
	if n, _ := r.Records(); n != 3 {
		t.Errorf("it has %d records", n)
	}
}

// A chunk whose last entry is the outcome of a forgotten record may still contain later records.
func TestOutcomesDoNotReleaseLaterRecords(t *testing.T) {
	r, large := ring.New(4, 1<<20), strings.Repeat("x", ring.MaxRecord)
	for number := 1; number <= 3; number++ {
		r.Add(fmt.Append(nil, number), []byte(large))
	}
	r.SetOutcome(1, []byte(large)) // fills the first chunk
	for number := 4; number <= 6; number++ {
		r.Add(fmt.Append(nil, number), []byte(large))
		r.SetOutcome(uint64(number), []byte(large))
	}
	if got := found(r, "3"); len(got) != 1 || got[0] != large+"|" {
		t.Errorf("of the last 4 records, the oldest is gone: %d are found", len(got))
	}
}

// Whatever is added in whatever order, each record that is found is complete and correct, the
// latest ones are found, and the memory stays within its bound. Small records leave memory unused.
func TestRingIsBounded(t *testing.T) {
	const records, bytes = 2000, 1 << 20
	for name, size := range map[string]func(*rand.Rand) int{
		"small":  func(r *rand.Rand) int { return r.IntN(60) },
		"large":  func(r *rand.Rand) int { return ring.MaxRecord - r.IntN(100) },
		"usual":  func(r *rand.Rand) int { return 200 + r.IntN(300) },
		"varied": func(r *rand.Rand) int { return 1 << r.IntN(14) },
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			r := ring.New(records, bytes)
			want := make(map[uint64]string)
			text := func(number uint64, what string) string {
				s := fmt.Sprintf("%s%d.", what, number)
				return strings.Repeat(s, size(random)/len(s)+1)
			}
			const all = 10 * records
			for number := uint64(1); number <= all; number++ {
				is := text(number, "d")
				if len(is) > ring.MaxRecord {
					is = is[:ring.MaxRecord]
				}
				r.Add(fmt.Append(nil, number), []byte(is))
				want[number] = is
				if old := number - min(number-1, random.Uint64N(records+100)); random.IntN(2) == 0 {
					r.SetOutcome(old, []byte(fmt.Sprintf("o%d", old)))
				}
			}
			have := 0
			for number := uint64(1); number <= all; number++ {
				r.Find(strconv.FormatUint(number, 10), func(decision, outcome []byte) bool {
					have++
					if string(decision) != want[number] || outcome != nil && string(outcome) != fmt.Sprintf("o%d", number) {
						t.Errorf("record %d is %.40s, outcome %s", number, decision, outcome)
					}
					return true
				})
			}
			n, used := r.Records()
			if n != have || n > records || used > bytes {
				t.Errorf("it has %d records of %d, in %d bytes", n, have, used)
			}
			t.Logf("%d records in %d bytes", n, used)
			if least := map[string]int{"small": records, "usual": records, "varied": 500, "large": 40}[name]; n < least {
				t.Errorf("it has %d records, want at least %d", n, least)
			}
			if name == "small" && used > bytes/2 {
				t.Errorf("small records take %d bytes", used)
			}
		})
	}
}

// What is larger than the maximum is not stored, and disturbs nothing.
func TestTooLargeARecordIsNotStored(t *testing.T) {
	r := ring.New(10, 1)
	r.Add([]byte("a"), make([]byte, ring.MaxRecord+1))
	number := r.Add([]byte("b"), []byte("b"))
	r.SetOutcome(number, make([]byte, ring.MaxRecord+1))
	if got := fmt.Sprint(found(r, "a"), found(r, "b")); got != "[] [b|]" {
		t.Errorf("it has %s", got)
	}
}

// A full Ring allocates nothing for a record, nor for its outcome.
func TestRecordsAllocateNothing(t *testing.T) {
	r := ring.New(100, 1)
	decision, outcome := make([]byte, 300), make([]byte, 40)
	x := []byte("x")
	for range 1000 {
		r.SetOutcome(r.Add(x, decision), outcome)
	}
	if n := testing.AllocsPerRun(1000, func() { r.SetOutcome(r.Add(x, decision), outcome) }); n != 0 {
		t.Errorf("a record makes %v allocations", n)
	}
}

var (
	decision = ring.Decision{
		ID: []byte("a-1"), At: time.Unix(1_800_000_000, 123456789), Route: "ns/r", Pool: "ns/p", Asked: "sql", VModel: "v", Model: "sql-v2",
		Fallback: "small", Waited: 3 * time.Second, Why: ring.WaitAtLimit, Band: -7, Policy: pick.Latency, Unpredicted: true, Tokenless: true,
		Prompt: 12, Output: 34, Relay: true, Again: true, Code: "no_endpoint", Message: "There is none.", Status: 503,
	}
	candidate = ring.Candidate{
		Endpoint: "[fd00::1]:8000", Reason: "least predicted cost", State: pick.Suspect, Requests: 5, ForAdapter: -1, Adapters: 2,
		Estimate: pick.Estimate{
			FrontendOverhead: .5, Queue: .25, Room: 1, Load: 2, Prefill: 3, Delay: 4, Step: 5, Longer: 6, Own: 7, Others: 8,
			Adapter: pick.InHost,
		},
	}
	ended = ring.Outcome{
		Endpoint: "10.0.0.1:80", Status: 200, Call: outcome.OK, Failure: outcome.Erred, Party: outcome.Engine, Attempts: 3,
		Elsewhere: []string{"a"}, Unreached: []string{"b", "c"}, Missing: []string{"d"}, FirstBody: time.Second, Duration: time.Minute,
		Prompt: 1, Completion: 2, Code: "x", Message: "y", ErrorType: "t", ErrorCode: "c",
	}
)

// What is encoded is decoded; every field is set in this test.
func TestRecordsAreDecoded(t *testing.T) {
	for _, v := range []any{decision, candidate, candidate.Estimate, ended} {
		of := reflect.ValueOf(v)
		for i := range of.NumField() {
			if of.Field(i).IsZero() {
				t.Errorf("%T.%s is not tested", v, of.Type().Field(i).Name)
			}
		}
	}
	second := ring.Candidate{Endpoint: "e2", ForAdapter: 9}
	b := decision.Append(nil, 2, 1)
	for _, c := range []*ring.Candidate{&candidate, &second, &candidate} {
		b = c.Append(b)
	}
	d, picked, others := ring.ReadDecision(b)
	if !reflect.DeepEqual(d, decision) || !reflect.DeepEqual(picked, []ring.Candidate{candidate, second}) ||
		!reflect.DeepEqual(others, []ring.Candidate{candidate}) {
		t.Errorf("%+v\n%+v\n%+v", d, picked, others)
	}
	if o := ring.ReadOutcome(ended.Append(nil)); !reflect.DeepEqual(o, ended) {
		t.Errorf("%+v", o)
	}
	for n := range b { // a broken record makes no panic, and no endless list
		ring.ReadDecision(b[:n])
	}
	for n := range ended.Append(nil) {
		ring.ReadOutcome(ended.Append(nil)[:n])
	}
}

// Texts that clients choose are cut, and so are lists: a record is never too large to be stored.
func TestLongTextsAreCut(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	d := ring.Decision{
		ID: []byte(long), Asked: long, Message: long, Model: long, Route: long, Pool: long, VModel: long, Code: long, Fallback: long,
	}
	b := d.Append(nil, 9, 1)
	c := candidate
	c.Endpoint, c.Reason = strings.Repeat("e", 60), strings.Repeat("r", 60)
	for range 10 {
		b = c.Append(b)
	}
	if len(b) > ring.MaxRecord {
		t.Errorf("a decision has %d bytes", len(b))
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = strings.Repeat("e", 60)
	}
	o := ring.OutcomeOf(&outcome.Outcome{Elsewhere: many, Unreached: many, Missing: many, Prompt: engine.Known(5)})
	o.Message, o.Code, o.ErrorType, o.ErrorCode = long, long, long, long
	if b := o.Append(nil); len(b) > ring.MaxRecord || ring.ReadOutcome(b).Prompt != 5 {
		t.Errorf("an outcome has %d bytes", len(b))
	}
}
