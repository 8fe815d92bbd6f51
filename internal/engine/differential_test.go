package engine_test

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

var mutations = flag.Int("mutations", 5000, "number of mutated pages that TestPagesAreReadAsByExpfmt reads")

// seeds returns short versions of vLLM's pages, and the pages of other engines.
func seeds(tb testing.TB) (pages [][]byte) {
	tb.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no pages: %v", err)
	}
	for _, file := range files {
		pages = append(pages, short(recorded(tb, filepath.Base(file))))
	}
	return pages
}

// short returns a large page with one line in ten of those that do not count.
func short(page []byte) []byte {
	if len(page) < 10_000 {
		return page
	}
	var b bytes.Buffer
	for i, line := range bytes.SplitAfter(page, []byte("\n")) {
		if i%10 == 0 || counted.Match(line) {
			b.Write(line)
		}
	}
	return b.Bytes()
}

// One Reader reads pages of which each differs a little from the one before, or from a recorded
// page. It gives the loads and the errors that expfmt gives.
func TestPagesAreReadAsByExpfmt(t *testing.T) {
	all := seeds(t)
	rng := rand.New(rand.NewPCG(3, 41))
	kinds := append(engine.Kinds(), "", "", "", "", "", "", "", "", engine.VLLM, engine.VLLM)
	var r engine.Reader
	page, kind := all[0], engine.Kind("")
	valid, invalid, kept := 0, 0, 0
	for n := range *mutations {
		switch rng.IntN(20) {
		case 0:
			page = all[rng.IntN(len(all))]
		case 1:
			kind = kinds[rng.IntN(len(kinds))]
		}
		next := page
		for range rng.IntN(3) {
			next = mutatePage(rng, next)
		}
		if rng.IntN(200) == 0 {
			r = engine.Reader{}
		}
		before := r.Known()
		err := compare(t, &r, next, kind)
		if t.Failed() {
			t.Fatalf("page %d", n)
		}
		if err == nil {
			valid++
			page = next
		} else {
			invalid++
		}
		if before && r.Known() {
			kept++
		}
	}
	t.Logf("%d valid pages, %d of them and of the page before with a layout; %d invalid pages", valid, kept, invalid)
	if valid < *mutations/4 || kept < *mutations/4 || invalid < *mutations/20 {
		t.Error("one kind of pages is too rare")
	}
}

// compare reads a page with a Reader and with the oracle, and returns the error.
func compare(t *testing.T, r *engine.Reader, page []byte, kind engine.Kind) error {
	t.Helper()
	want, wantErr := new(engine.PlainReader).Load(page, kind)
	mine := append(make([]byte, 0, len(page)), page...) // without room, so that no line can extend beyond the page
	got, err := r.Load(mine, kind)
	for i := range mine { // the buffer is used again
		mine[i] = 'x'
	}
	if text(err) != text(wantErr) {
		t.Errorf("the error is %q, and %q of expfmt; kind %q:\n%q", text(err), text(wantErr), kind, page)
	}
	if diff := cmp.Diff(want, got, compareLoads); diff != "" {
		t.Errorf("kind %q, %q (-expfmt +headgate):\n%s", kind, page, diff)
	}
	return err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A page that is cut anywhere is read as expfmt reads it, also after the whole page.
func TestPagesThatAreCut(t *testing.T) {
	whole := []byte("# TYPE vllm:num_requests_running gauge\n" +
		`vllm:num_requests_running{a="\\\"}"} 1.5e0 ` + "17\n" +
		"vllm:num_requests_runner 2\n" + // does not count, and begins as one that does
		`vllm:lora_requests_info{max_lora="2",running_lora_adapters="a"} 3` + "\n" +
		"# HELP vllm:num_requests_waiting text\n# TYPE\tvllm:num_requests_waiting gauge\nvllm:num_requests_waiting 4\n" +
		`{"vllm:kv_cache_usage_perc"} 0.5` + "\n" +
		"vllm:num_requests_swaps") // does not count, and ends the page
	for end := range len(whole) + 1 {
		var r engine.Reader
		_ = compare(t, &r, whole[:end], "")
		_ = compare(t, &r, whole, engine.VLLM)
		_ = compare(t, &r, whole[:end], engine.VLLM)
	}
}

// A page in a real sequence of pages is read as if it were the first.
func TestPagesThatFollowOneAnother(t *testing.T) {
	idle, loaded := string(recorded(t, "vllm-0.32-idle.txt")), string(recorded(t, "vllm-0.32-loaded.txt"))
	config := `vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0` + "\n"
	table := "# TYPE vllm:lora_requests_info gauge\n"
	set := func(names, value string) string {
		return `vllm:lora_requests_info{max_lora="2",running_lora_adapters="` + names + `",waiting_lora_adapters=""} ` + value + "\n"
	}
	steps := "# TYPE vllm:iteration_tokens_total histogram\n" + `vllm:iteration_tokens_total_bucket{le="8"} 3` + "\n" +
		"vllm:iteration_tokens_total_count 4\nvllm:iteration_tokens_total_sum 7\n"
	beforeUsage, _, _ := strings.Cut(loaded, "vllm:kv_cache_usage_perc{")
	const running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
	const one, two = running + " 1\n", running + " 2\n"
	withSteps := func(old, new string) string { return one + strings.Replace(steps, old, new, 1) }
	for _, c := range []struct {
		name  string
		pages []string
	}{
		{"the same page", []string{loaded, loaded, loaded}},
		{"values rise", []string{loaded, string(moved([]byte(loaded), 1)), string(moved([]byte(loaded), 123456))}},
		{"a restart", []string{loaded, idle, loaded}},
		{"cut in a line that counts, then whole", []string{loaded, beforeUsage + "vllm:kv_cache_usage_perc{engi", loaded}},
		{"cut between lines, then whole", []string{loaded, beforeUsage, loaded}},
		{"another engine at the address", []string{loaded, string(recorded(t, "sglang-documented.txt")), loaded, "", loaded}},
		{"lines move", []string{one + waiting + " 2\n", waiting + " 2\n" + one}},
		{"a label moves", []string{running + `{a="1",b="2"} 1` + "\n", running + `{b="2",a="1"} 2` + "\n"}},
		{"a series more, then fewer", []string{
			running + `{engine="0"} 1` + "\n",
			running + `{engine="0"} 1` + "\n" + running + `{engine="1"} 5` + "\n",
			running + `{engine="1"} 5` + "\n",
		}},
		{"a longer name", []string{waiting + " 1\n", waiting + "_by_reason 1\n", waiting + "2 7\n", waiting + " 2\n"}},
		{"a name that goes on where its value was", []string{waiting + " 1\n", waiting + "1 3\n", waiting + "{a=\"b\"} 3\n"}},
		{"a value next to its name", []string{waiting + "-3\n", waiting + "5 1\n", waiting + "{}3\n", waiting + "{}5 1\n"}},
		{"labels that end early", []string{running + `{a="}"} 1` + "\n", running + `{a="} 1` + "\n", running + `{a="\"}"} 2` + "\n"}},
		{"a family twice", []string{one + two, one + running + " 3\n"}},
		{"a type after the samples", []string{"# TYPE " + running + " gauge\n" + one, one + "# TYPE " + running + " gauge\n"}},
		{"another type", []string{
			"# TYPE " + running + " gauge\n" + one, "# TYPE " + running + " summary\n" + one, "# TYPE " + running + " counter\n" + one,
		}},
		{"times", []string{running + " 1 5\n", running + " 2 6\n", running + " 2 6.5\n", running + " 2 \n"}},
		{"no numbers", []string{
			one, running + " NaN\n", running + " NaN\n", running + " +Inf\n", running + " 0x1p3\n", running + " 1e999\n",
			running + " 1_0\n", running + " -0\n",
		}},
		{"lines end with a carriage return", []string{one, running + " 1\r\n", one}},
		{"no newline at the end", []string{one, running + " 1"}},
		{"counts that are fractions, negative or large", []string{
			one + steps, withSteps("count 4", "count 4.5"), withSteps("} 3", "} 3.5"), withSteps("} 3", "} -3"), withSteps("} 3", "} NaN"),
			withSteps("} 3", "} 1e300"), withSteps("sum 7", "sum NaN"), one + steps,
		}},
		{"the configuration", []string{one + config, one + strings.Replace(config, "100", "50", 1), config, one}},
		{"a configuration that only vLLM has", []string{
			"sglang:num_running_reqs 1\n" + config, "sglang:num_running_reqs 2\nvllm:cache_config_info{ 1\n", two + "vllm:cache_config_info{ 1\n",
		}},
		{"a quoted name appears", []string{one, one + `{"vllm:num_requests_running",engine="1"} 2` + "\n", running + " 3\n"}},
		{"the newest set of adapters changes", []string{
			table + set("a", "1") + set("b", "2"), table + set("a", "3") + set("b", "2"), table + set("a", "3") + set("b", "3"),
			table + set("a", "NaN") + set("b", "3"),
		}},
		{"sets of adapters appear and vanish", []string{
			table, table + set("", "1"), table + set("", "1") + set("a", "2"), table + set("", "1") + set("c", "4") + set("a", "2") + config,
			table + set("a", "2"), table, table + set("a", "2"),
		}},
		{"sets of adapters at several places", []string{
			table + set("a", "1") + config + set("b", "2"), table + set("a", "1") + config, set("b", "2") + table + config,
			table + config + set("b", "2"),
		}},
		{"an invalid set of adapters", []string{
			table + set("a", "1"), table + set("a", "1") + set(`\x`, "1"), table + set("a", "x"), table + set("a", "1") + set("b", ""),
		}},
		{"sets of adapters of two names", []string{
			table + set("a", "1"), table + set("a", "1") + "lora_requests_info{max_lora=\"9\",running_lora_adapters=\"x\"} 4\n",
		}},
		{"a table of adapters that is a histogram", []string{
			one + "# TYPE vllm:lora_requests_info histogram\n" + set("a", "1"), one + set("a", "1"),
		}},
		{"other comments", []string{
			"#\n# x\n#TYPE " + running + " gauge\n  " + running + "  3\n", "#\n#\tTYPE\t" + running + " gauge\n" + running + " 4\n",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range []engine.Kind{"", engine.VLLM, engine.NIM, engine.SGLang, "xllm"} {
				var r engine.Reader
				for _, page := range c.pages {
					_ = compare(t, &r, []byte(page), kind)
					_ = compare(t, &r, []byte(page), kind)
				}
			}
		})
	}
}

// Unusual lines have a layout, too, unless their value is no clear end of the line, or changes what
// the parser makes of the line.
func TestLinesWithALayout(t *testing.T) {
	const running, other = "vllm:num_requests_running", "# TYPE vllm:iteration_tokens_total histogram\nvllm:iteration_tokens_total"
	for page, want := range map[string]bool{
		"": true, "\n": true, running + " 1\n": true, " " + running + "\t 1\n": true, running + " 1 5\n": true, running + " NaN\n": true,
		running + "{}1\n": true, running + ` { a = "}" , b="\"}\\" ,} 1` + "\n": true, running + `{"a }"="b"} 1` + "\n": true,
		other + "_count 3\n": true, other + "_sum 3.5\n": true, "# TYPE " + running + " summary\n" + running + "_count 1.5\n": true,
		"xllm:running{ 1\n": true,

		running + "-3\n": false, running + " 1": false, `{"` + running + `"} 1` + "\n": false, running + "\n": false, running + " 1_0\n": false,
		other + "_count 3.5\n": false, other + `_bucket{le="1"} 3.5` + "\n": false, running + `{a="b} 1` + "\n": false,
	} {
		var r engine.Reader
		_ = compare(t, &r, []byte(page), "")
		if r.Known() != want {
			t.Errorf("%q has a layout: %v, want %v", page, r.Known(), want)
		}
	}
}

// Pages with the layout of the page before allocate nothing.
func TestPagesOfOneLayoutAllocateNothing(t *testing.T) {
	page := recorded(t, "vllm-0.32-loaded.txt")
	later := moved(page, 3)
	var r engine.Reader
	for _, c := range []struct {
		name   string
		second []byte
	}{{"the same page", page}, {"all counters have risen", later}} {
		n := testing.AllocsPerRun(20, func() {
			for _, p := range [][]byte{page, c.second} {
				if _, err := r.Load(p, ""); err != nil {
					t.Fatal(err)
				}
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

// A Reader of vLLM's page keeps some KB, whatever the size of the page.
func TestMemoryOfAReader(t *testing.T) {
	page := recorded(t, "vllm-0.32-loaded.txt")
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	readers := make([]engine.Reader, 500)
	for i := range readers {
		if _, err := readers[i].Load(page, ""); err != nil {
			t.Fatal(err)
		}
	}
	each := (int64(heap()) - int64(before)) / int64(len(readers))
	t.Logf("%d bytes", each)
	if each > 12<<10 {
		t.Errorf("a Reader keeps %d bytes, want at most 12 KB", each)
	}
	runtime.KeepAlive(readers)
}

// A page with more lines than a Reader remembers is read.
func TestPageOfManySeries(t *testing.T) {
	var b strings.Builder
	for range 10_000 {
		b.WriteString("vllm:num_requests_running 1\n")
	}
	var r engine.Reader
	for range 2 {
		_ = compare(t, &r, []byte(b.String()), "")
	}
	if r.Known() {
		t.Error("the reader remembers 10,000 lines")
	}
}
