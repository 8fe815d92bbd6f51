package openai_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/prefix"
)

// chat returns a conversation of about size bytes, with the model as the last member of the object,
// as the Python client writes it.
func chat(size int) []byte {
	var turns []string
	for n := 0; n < size; n += 1024 {
		turns = append(turns, fmt.Sprintf(`{"role":"user","content":"%s\n"}`, strings.Repeat("the quick brown fox ", 50)))
	}
	return []byte(`{"messages":[` + strings.Join(turns, ",") + `],"stream":true,"model":"sentiment"}`)
}

// Parse allocates only the model's name, however long the prompt.
func TestParsingAllocatesOnlyTheName(t *testing.T) {
	for _, body := range [][]byte{chat(1 << 10), chat(256 << 10), []byte(`{"model":"sentiment","prompt":"a \"quoted\"\n word"}`)} {
		allocs := testing.AllocsPerRun(20, func() {
			if _, err := openai.Parse(openai.JSON, "", body); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 1 {
			t.Errorf("%d bytes: %v allocations, want at most 1", len(body), allocs)
		}
	}
}

// BenchmarkParse is run with go test ./extproc/openai -run "^$" -bench Parse.
func BenchmarkParse(b *testing.B) {
	for _, kb := range []int{1, 16, 256} {
		body := chat(kb << 10)
		b.Run(fmt.Sprintf("body=%dKB/impl=plain", kb), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var m map[string]any
				if err := json.Unmarshal(body, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("body=%dKB/impl=headgate", kb), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := openai.Parse(openai.JSON, "", body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReplaced measures how many times faster Parse is than the parser that it replaced, as
// the median over many rounds. Each round runs both, so that a busy machine slows down both: go
// test ./extproc/openai -run "^$" -bench Replaced.
func BenchmarkReplaced(b *testing.B) {
	for _, c := range []struct {
		name   string
		pieces []string
	}{
		{"english", []string{"the ", "quick ", "brown ", "fox ", "jumps ", "over ", "a ", "lazy dog, ", "and then goes home.", `\n`}},
		{"code", []string{"if ", "len(name) ", "== ", "0 ", "{", "}", `\n`, `\t`, `\n\t`, `\"%s\"`, "return ", "fmt.Errorf(", "path) "}},
		{"escaped", []string{`\u6a21`, `\u578b`, `\u662f`, `\u4ec0`, `\u4e48`}},
	} {
		for _, kb := range []int{1, 16, 100} {
			random := rand.New(rand.NewPCG(1, 2))
			content := ""
			for len(content) < kb<<10 {
				content += c.pieces[random.IntN(len(c.pieces))]
			}
			body := []byte(`{"messages":[{"role":"user","content":"` + content + `"}],"model":"m"}`)
			took := func(parse func() bool) float64 {
				began := time.Now()
				if !parse() {
					b.Fatal("the body is refused")
				}
				return float64(time.Since(began))
			}
			b.Run(fmt.Sprintf("text=%s/body=%dKB", c.name, kb), func(b *testing.B) {
				var all []float64
				for b.Loop() {
					before := took(func() bool {
						return !replacedDepth(body) && gjson.ValidBytes(body) && replacedWalk(body).models == 1
					})
					after := took(func() bool {
						_, err := openai.Parse(openai.JSON, "", body)
						return err == nil
					})
					all = append(all, before/after)
				}
				slices.Sort(all)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(all[len(all)/2], "times-faster")
			})
		}
	}
}

// BenchmarkPrompt measures reading a prompt and, for comparison, parsing the same body: go test
// ./extproc/openai -run "^$" -bench Prompt.
func BenchmarkPrompt(b *testing.B) {
	for _, kb := range []int{1, 16, 256} {
		body := chat(kb << 10)
		b.Run(fmt.Sprintf("body=%dKB", kb), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			r, err := openai.Parse(openai.JSON, "", body)
			if err != nil {
				b.Fatal(err)
			}
			var h prefix.Hasher
			for b.Loop() {
				r.Prompt(body, prefix.Scope{Pool: "default/pool", Adapter: "sentiment"}, &h)
			}
		})
	}
}
