package fit

import (
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

func TestReadOwnColumns(t *testing.T) {
	rows, err := Read("own.csv", strings.NewReader(`prompt_tokens,context_tokens,batch,kv_tokens,adapters,prefill_seconds,step_seconds
200,100,,,,0.05,
100,,4,,true,,0.02
,,8,4000,false,,0.03
100,50,2,900,1,0.04,0.01
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{Prefill: profile.Work{PromptTokens: 200, Squares: 300*300 - 100*100}, PrefillSeconds: 0.05},
		{Step: profile.Work{Sequences: 4, KVTokens: 400, Adapters: true}, StepSeconds: 0.02},
		{Step: profile.Work{Sequences: 8, KVTokens: 4000}, StepSeconds: 0.03},
		{
			Prefill: profile.Work{PromptTokens: 100, Squares: 150*150 - 50*50}, PrefillSeconds: 0.04,
			Step: profile.Work{Sequences: 2, KVTokens: 900, Adapters: true}, StepSeconds: 0.01,
		},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("rows are\n%+v, want\n%+v", rows, want)
	}
	rows, err = Read("own.csv", strings.NewReader("\ufeff step_seconds ,model,tensor_parallel,hardware\n0.5, m ,4,h\n\n0.25,n,,\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []Set{{"m", "h", 4}, {Model: "n"}}; !reflect.DeepEqual(Sets(rows), want) || rows[0].Step.Sequences != 1 {
		t.Errorf("sets are %+v, want %+v; a row is %+v", Sets(rows), want, rows[0])
	}
}

// The two published formats have the same header but different units. The total time shows which
// format a file has.
func TestReadPublishedColumns(t *testing.T) {
	header := "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,token_time,e2e_time,tensor_parallel\n"
	for _, c := range []struct {
		name, lines string
		want        []Row
	}{
		{
			"SageServe: 128 tokens in 1.27 s", "m,h,512,1,128,0,0,0.03,1.27,1.31,2\nm,h,512,8,128,0,0,0.05,2.54,2.6,2\n",
			[]Row{
				{
					Set: Set{"m", "h", 2}, Prefill: profile.Work{PromptTokens: 512, Squares: 512 * 512}, PrefillSeconds: 0.03,
					Step: profile.Work{Sequences: 1, KVTokens: 512 + 63}, StepSeconds: 0.01,
				},
				{Set: Set{"m", "h", 2}, Step: profile.Work{Sequences: 8, KVTokens: 8 * (512 + 63)}, StepSeconds: 0.02},
			},
		},
		{
			"Splitwise: one token in 50 ms, and an answer that ended after 600",
			"m,h,512,1,128,1,1,200,50,6560,2\nm,h,512,2,8192,1,1,400,50,30400,2\n",
			[]Row{
				{
					Set: Set{"m", "h", 2}, Prefill: profile.Work{PromptTokens: 512, Squares: 512 * 512}, PrefillSeconds: 0.2,
					Step: profile.Work{Sequences: 1, KVTokens: 512 + 63}, StepSeconds: 0.05,
				},
				{Set: Set{"m", "h", 2}, Step: profile.Work{Sequences: 2, KVTokens: 2 * (512 + 300)}, StepSeconds: 0.05},
			},
		},
	} {
		rows, err := Read("published.csv", strings.NewReader(header+c.lines))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(rows, c.want) {
			t.Errorf("%s: rows are\n%+v, want\n%+v", c.name, rows, c.want)
		}
	}
}

// Errors name the file and the line, and say what to write.
func TestErrorsOfFiles(t *testing.T) {
	published := "prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time\n"
	for _, c := range []struct{ text, want string }{
		{"", "x.csv is empty: its first line names columns, such as prompt_tokens,prefill_seconds,batch,kv_tokens,step_seconds"},
		{"step_seconds\n", "x.csv has a header and no rows: write one line for each measurement"},
		{"step_seconds,step_seconds\n1,1\n", `x.csv:1: the column "step_seconds" is there twice: leave one of them out`},
		{
			"step_second\n1\n",
			`x.csv:1: no column is called "step_second": write some of model, hardware, tensor_parallel, prompt_tokens, context_tokens, batch, kv_tokens, adapters, prefill_seconds, frontend_overhead_seconds, step_seconds`,
		},
		{"prompt_tokens\n1\n", "x.csv:1: no column has times: write prefill_seconds, step_seconds or both"},
		{"batch,step_seconds\n1,0.1\n-1,0.1\n", `x.csv:3: batch is "-1": write a whole number that is not negative`},
		{"batch,step_seconds\n0,0.1\n", "x.csv:2: step_seconds is of at least one sequence: write how many decoded as batch"},
		{"step_seconds\n0\n", `x.csv:2: step_seconds is "0": write a time above 0, or nothing where it was not measured`},
		{"step_seconds\n1s\n", `x.csv:2: step_seconds is "1s": write a time above 0`},
		{"step_seconds\nNaN\n", `x.csv:2: step_seconds is "NaN": write a time above 0`},
		{"step_seconds\nInf\n", `x.csv:2: step_seconds is "Inf": write a time above 0`},
		{"adapters,step_seconds\nmany,1\n", `x.csv:2: adapters is "many": write true or false`},
		{"prompt_tokens,step_seconds\n\n5,\n", "x.csv:3: the row has no time: write prefill_seconds, step_seconds or both"},
		{"prefill_seconds\n1\n", "x.csv:2: prefill_seconds is of a prompt: write how many tokens were computed as prompt_tokens"},
		{
			"prompt_tokens,prefill_seconds,frontend_overhead_seconds\n5,1,1\n",
			"x.csv:2: frontend_overhead_seconds is a part of prefill_seconds: write a shorter one, or nothing where it was not measured",
		},
		{
			"prompt_tokens,batch,kv_tokens,step_seconds,mixed_seconds\n512,4,80,0.01,0.05\n512,4,,0.01,0.05\n",
			"x.csv:3: mixed_seconds lacks kv_tokens: write how many tokens the batch others had in the KV cache together, without the prompt's",
		},
		{"batch,step_seconds\n1\n", "x.csv: record on line 2: wrong number of fields"},
		{
			"prompt_size,batch_size\n1,1\n",
			`x.csv:1: the column "token_size" is missing: the published layout has prompt_size, batch_size, token_size, prompt_time, token_time, e2e_time`,
		},
		{published + "0,1,128,1,1,3\n", "x.csv:2: prompt_size or batch_size is 0 or empty: write at least 1"},
		{published + "512,1,1,1,1,3\n", "x.csv:2: token_size is 1: write at least 2, for the first token has no decode step"},
		{published + "512,1,128,1,1,1\n", "x.csv:2: write prompt_time, token_time, and an e2e_time that is longer than the first"},
	} {
		if _, err := Read("x.csv", strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("of %q the fault is\n%v, want\n%s", c.text, err, c.want)
		}
	}
}
