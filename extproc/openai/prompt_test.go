package openai_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/prefix"
)

var inPool = prefix.Scope{Pool: "default/pool", Adapter: "sql"}

// written returns the prompt's last block, the prompt's size, and its blocks. The last block is
// padded so that it covers the whole prompt.
func written(t *testing.T, of prefix.Scope, body string) (last uint64, p openai.Prompt, blocks []uint64) {
	t.Helper()
	r, err := openai.Parse(openai.JSON, "", []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	h := new(prefix.Hasher)
	p = r.Prompt([]byte(body), of, h)
	blocks = slices.Clone(h.Blocks())
	return full(h), p, blocks
}

func full(h *prefix.Hasher) uint64 {
	h.Write(make([]byte, 2*prefix.BlockBytes))
	return h.Blocks()[len(h.Blocks())-1]
}

// The table shows which parts of a body are the prompt in each API, and in which order. Marks: ①
// tools, ② the system prompt, ③ a turn, ④ content, ⑤ other members, ⑥ each key and value of other
// members, ⑦ bytes of other prompts, which are counted but not written.
func TestPrompt(t *testing.T) {
	tokens := func(ids ...uint32) string {
		var all []byte
		for _, id := range ids {
			all = binary.LittleEndian.AppendUint32(all, id)
		}
		return string(all)
	}
	for _, c := range []struct{ name, body, want string }{
		{
			"chat", `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi\n\"you\""}]}`,
			`③system④Be brief.③user④Hi\n\"you\"`,
		},
		{
			"chat with tools at the end",
			`{"messages":[{"role":"user","content":"Hi"}],"model":"m","tools":[{"type":"function", "function":{"name":"f"}}]}`,
			`①[{"type":"function", "function":{"name":"f"}}]③user④Hi`,
		},
		{
			"chat of parts",
			`{"model":"m","messages":[{"content":[{"type":"text","text":"What is it?"},{"type":"refusal","refusal":{"of":"it"}},"and"],"role":"user"}]}`,
			`③user④What is it?⑤⑥type⑥"refusal"⑥refusal⑥{"of":"it"}④and`,
		},
		{
			"chat with a call",
			`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1"}],"content":null},{"role":"tool","tool_call_id":"1","content":"42"}]}`,
			`③assistant④null⑤⑥tool_calls⑥[{"id":"1"}]③tool④42⑤⑥tool_call_id⑥"1"`,
		},
		{"completions", `{"prompt":"Once upon","model":"m"}`, "Once upon"},
		{"completions of several", `{"prompt":["Once upon","a time"],"model":"m"}`, "Once upon" + more(6)},
		{"completions of tokens", `{"prompt":[1, 300,70000 ,4294967295],"model":"m"}`, tokens(1, 300, 70000, 4294967295)},
		{"completions of several of tokens", `{"prompt":[[1,2],[3, 4 ],[5]],"model":"m"}`, tokens(1, 2) + more(12)},
		{"responses", `{"model":"m","input":"Hi","instructions":"Be brief."}`, `②④Be brief.Hi`},
		{
			"responses of items",
			`{"model":"m","instructions":"Be brief.","tools":[1],"input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]},{"type":"function_call_output","call_id":"1","output":"42"}]}`,
			`①[1]②④Be brief.③user④Hi③④⑤⑥type⑥"function_call_output"⑥call_id⑥"1"⑥output⑥"42"`,
		},
		{
			"messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"system":"Be brief."}`,
			`②④Be brief.③user④Hi`,
		},
		{
			"messages of parts",
			`{"model":"m","system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42","cache_control":{}}]}]}`,
			`②④Be brief.③user⑤⑥type⑥"tool_result"⑥tool_use_id⑥"1"⑥content⑥"42"`,
		},
		{"embeddings", `{"model":"m","input":["one","two","three"]}`, "one" + more(8)},
		{"embeddings of tokens", `{"model":"m","input":[7]}`, tokens(7)},
		{"nothing of a prompt", `{"model":"m","query":"what","documents":["this"]}`, ""},
		{"null", `{"model":"m","tools":null,"system":null,"messages":null,"prompt":null,"input":null,"cache_salt":null}`, ""},
		{"empty", `{"model":"m","tools":[],"messages":[],"prompt":"","input":[{}]}`, `①[]③④`},
		{"other kinds than they should be", `{"model":"m","messages":[1,{"role":5,"content":{"a":1}}],"prompt":true}`, tokens(1, 5, 1) +
			"true"},
		{"a member twice", `{"model":"m","prompt":"one","prompt":"two"}`, "two"},
	} {
		last, p, _ := written(t, inPool, c.body)
		h := new(prefix.Hasher)
		h.Begin(inPool.Seed())
		first, others, _ := strings.Cut(c.want, more(0))
		h.Write([]byte(marks.Replace(first)))
		if last != full(h) {
			t.Errorf("%s: what was written is not %q", c.name, c.want)
		}
		if want := len(unmarked.Replace(first)) + len(others); p.Bytes != want {
			t.Errorf("%s: the prompt has %d bytes, want %d", c.name, p.Bytes, want)
		}
	}
}

// more returns the notation for this many bytes of other prompts.
func more(bytes int) string { return "⑦" + strings.Repeat(".", bytes) }

var (
	marks    = strings.NewReplacer("①", "\x01", "②", "\x02", "③", "\x03", "④", "\x04", "⑤", "\x05", "⑥", "\x06")
	unmarked = strings.NewReplacer("①", "", "②", "", "③", "", "④", "", "⑤", "", "⑥", "")
)

// The same conversation has the same blocks, and a different one has different blocks.
func TestSamePromptHasTheSameBlocks(t *testing.T) {
	const chat = `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}`
	base, _, _ := written(t, inPool, chat)
	for name, body := range map[string]string{
		"members in another order":   `{"messages":[{"content":"Be brief.","role":"system"},{"content":"Hi","role":"user"}],"tools":[{"a":1}],"model":"m"}`,
		"other white space":          "{ \"model\" : \"m\" ,\n\t\"tools\": [{\"a\":1}],\r\n \"messages\" : [ {\"role\" : \"system\" , \"content\" : \"Be brief.\" } ,\n{\"role\":\"user\",\"content\":\"Hi\"} ] }",
		"a part":                     `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","content":"Hi"}]}`,
		"what matters to no prompt":  `{"model":"n","temperature":0.5,"tools":[{"a":1}],"max_tokens":5,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],"n":2}`,
		"a salt that is none":        `{"model":"m","cache_salt":null,"tools":[{"a":1}],"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}`,
		"cache_control of Anthropic": `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":[{"cache_control":{},"type":"text","text":"Be brief."}]},{"role":"user","content":"Hi"}]}`,
	} {
		if last, _, _ := written(t, inPool, body); last != base {
			t.Errorf("%s: other blocks", name)
		}
	}
	for name, body := range map[string]string{
		"a salt":           `{"model":"m","cache_salt":"s","tools":[{"a":1}],"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}`,
		"other tools":      `{"model":"m","tools":[{"a":2}],"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}`,
		"another role":     `{"model":"m","tools":[{"a":1}],"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}]}`,
		"another order":    `{"model":"m","tools":[{"a":1}],"messages":[{"role":"user","content":"Hi"},{"role":"system","content":"Be brief."}]}`,
		"a name":           `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":"Be brief.","name":"x"},{"role":"user","content":"Hi"}]}`,
		"a turn less":      `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":"Be brief."}]}`,
		"turns in one":     `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":"Be brief.userHi"}]}`,
		"content in role":  `{"model":"m","tools":[{"a":1}],"messages":[{"role":"systemBe brief.","content":""},{"role":"user","content":"Hi"}]}`,
		"parts in another": `{"model":"m","tools":[{"a":1}],"messages":[{"role":"system","content":[{"type":"text","text":"Be"},{"type":"text","text":" brief."}]},{"role":"user","content":"Hi"}]}`,
	} {
		if last, _, _ := written(t, inPool, body); last == base {
			t.Errorf("%s: the same blocks", name)
		}
	}
	if last, _, _ := written(t, prefix.Scope{Pool: "default/pool"}, chat); last == base {
		t.Error("another adapter: the same blocks")
	}
	one, _, _ := written(t, inPool, `{"model":"m","cache_salt":"s","prompt":"x"}`)
	other, _, _ := written(t, inPool, `{"model":"m","cache_salt":"t","prompt":"x"}`)
	if one == other {
		t.Error("another salt: the same blocks")
	}
}

// An attachment counts as many tokens as an image for LLaVA-1.5, whatever its size in the body.
// Prompts have different blocks if any byte of an attachment differs.
func TestAttachments(t *testing.T) {
	const image = 576 * prefix.TokenBytes
	long := strings.Repeat("iVBORw0KGgo", 50_000)
	for name, c := range map[string]struct {
		body  string // the body, with %s instead of the attachment
		bytes int
	}{
		"chat, an image": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`,
			len("user") + image,
		},
		"chat, the type behind": {
			`{"model":"m","messages":[{"role":"user","content":[{"image_url":{"url":"%s"},"type":"image_url"}]}]}`,
			len("user") + image,
		},
		"chat, no type": {
			`{"model":"m","messages":[{"role":"user","content":[{"image_url":{"url":"%s"}}]}]}`,
			len("user") + image,
		},
		"chat, beside text": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"What?"},{"type":"image_url","image_url":{"url":"%s"}}]}]}`,
			len("userWhat?") + image,
		},
		"chat, two": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"input_image","image_url":"x"},{"type":"input_image","image_url":"%s"}]}]}`,
			len("user") +
				2*image,
		},
		"chat, a sound": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"%s","format":"wav"}}]}]}`,
			len("user") + image,
		},
		"chat, a video": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"%s"}}]}]}`,
			len("user") + image,
		},
		"chat, a file": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"%s"}}]}]}`,
			len("user") + image,
		},
		"responses": {
			`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"%s"}]}]}`,
			len("user") + image,
		},
		"responses, of a function": {`{"model":"m","input":[{"output":[{"type":"input_image","image_url":"%s"}]}]}`, len("output") + image},
		"messages": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"%s"}}]}]}`,
			len("user") + image,
		},
		"messages, a document": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","data":"%s"}}]}]}`,
			len("user") + image,
		},
		"messages, of a tool": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"data":"%s"}}]}]}]}`,
			len(`usertype"tool_result"content`) + image,
		},
		"text that speaks of one": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"image %s"}]}]}`,
			len("userimage ") + len(long) + 1,
		},
	} {
		last, p, blocks := written(t, inPool, fmt.Sprintf(c.body, long+"a"))
		if p.Bytes != c.bytes {
			t.Errorf("%s: the prompt has %d bytes, want %d", name, p.Bytes, c.bytes)
		}
		if len(blocks) > p.Bytes/prefix.BlockBytes+1 {
			t.Errorf("%s: %d blocks of %d bytes", name, len(blocks), p.Bytes)
		}
		if again, _, _ := written(t, inPool, fmt.Sprintf(c.body, long+"a")); again != last {
			t.Errorf("%s: equal ones have different blocks", name)
		}
		if other, _, _ := written(t, inPool, fmt.Sprintf(c.body, long+"b")); other == last {
			t.Errorf("%s: different ones have the same blocks", name)
		}
	}
	// Members that clients move from turn to turn are not part of the prompt.
	one, _, _ := written(t, inPool, `{"model":"m","messages":[{"content":[{"type":"image","source":"x","cache_control":{}}]}]}`)
	if other, _, _ := written(t, inPool, `{"model":"m","messages":[{"content":[{"type":"image","source":"x"}]}]}`); one != other {
		t.Error("with cache_control the blocks differ")
	}
}

// The blocks of a continued conversation begin with the blocks of the earlier conversation.
func TestConversationContinues(t *testing.T) {
	turns := []string{fmt.Sprintf(`{"role":"system","content":%q}`, strings.Repeat("Be brief. ", 100))}
	var before []uint64
	for i := range 5 {
		turns = append(turns, fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":%q}]}`, strings.Repeat("why? ", 100+i)))
		_, p, blocks := written(t, inPool, `{"messages":[`+strings.Join(turns, ",")+`],"model":"m"}`)
		if len(blocks) <= len(before) || !slices.Equal(blocks[:len(before)], before) {
			t.Fatalf("turn %d: the %d blocks do not begin with the %d before", i, len(blocks), len(before))
		}
		if at := p.Bytes / prefix.BlockBytes; len(blocks) < at || len(blocks) > at+1 {
			t.Fatalf("turn %d: %d blocks of %d bytes", i, len(blocks), p.Bytes)
		}
		before = blocks
		turns = append(turns, fmt.Sprintf(`{"role":"assistant","content":%q}`, strings.Repeat("so. ", 50)))
	}
}

func TestMaxTokens(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m"}`:                 0,
		`{"model":"m","max_tokens":17}`: 17,
		`{"model":"m","max_tokens":17,"max_completion_tokens":5}`:   5,
		`{"model":"m","max_tokens":17,"max_completion_tokens":0}`:   17,
		`{"model":"m","max_tokens":null,"max_output_tokens" : 33 }`: 33,
		`{"model":"m","max_tokens":-1}`:                             0,
		`{"model":"m","max_tokens":1e3}`:                            0,
		`{"model":"m","max_tokens":"17"}`:                           0,
		`{"model":"m","max_tokens":999999999}`:                      999999999,
		`{"model":"m","max_tokens":99999999999999999999}`:           0,
		`{"model":"m","a":{"max_tokens":17},"prompt":"max_tokens"}`: 0,
	} {
		if _, p, _ := written(t, inPool, body); p.MaxTokens != want {
			t.Errorf("%s: %d, want %d", body, p.MaxTokens, want)
		}
	}
}

// A request asks for an answer to each prompt, times n or best_of. An attachment is found wherever
// it is in the prompt.
func TestAnswers(t *testing.T) {
	const image = `{"type":"image_url","image_url":{"url":"https://a/b.png"}}`
	for body, want := range map[string]openai.Prompt{
		`{"model":"m"}`:                                           {},
		`{"model":"m","prompt":"a"}`:                              {Answers: 1},
		`{"model":"m","n":3,"prompt":"a"}`:                        {Answers: 3},
		`{"model":"m","n":2,"best_of":5,"prompt":"a"}`:            {Answers: 5},
		`{"model":"m","n":-1,"prompt":"a"}`:                       {Answers: 1},
		`{"model":"m","n":2,"prompt":["a","b","c"]}`:              {Answers: 6},
		`{"model":"m","n":2,"prompt":[1,2,3]}`:                    {Answers: 2},
		`{"model":"m","prompt":[[1,2],[3]]}`:                      {Answers: 2},
		`{"model":"m","input":["a","b"]}`:                         {Answers: 2},
		`{"model":"m","messages":[{"role":"user"},{"role":"x"}]}`: {Answers: 1},
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},` + image + `]}]}`:               {Answers: 1, Attached: true},
		`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[` + image + `]}]}]}`:       {Answers: 1, Attached: true},
		`{"model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_file","file_id":"file-1"}]}]}`: {Answers: 1, Attached: true},
	} {
		_, p, _ := written(t, inPool, body)
		if p.Bytes, p.MaxTokens = 0, 0; p != want {
			t.Errorf("%s: %+v, want %+v", body, p, want)
		}
	}
}

// The beginning of a body has the first blocks of the whole body, if the parts of the body are in
// the order in which Prompt writes them.
func TestPromptOfAPrefix(t *testing.T) {
	long := strings.Repeat(`word \"quoted\" `, 40)
	for _, body := range []string{
		`{"model":"m","tools":[{"a":"` + long + `"}],"messages":[{"role":"system","content":"` + long +
			`"},{"role":"user","content":[{"type":"text","text":"` + long + `"}]},{"role":"user","content":"` + long + `"}]}`,
		`{"model":"m","prompt":"` + long + `"}`,
		`{"model":"m","prompt":[` + strings.Repeat("123, 45678,", 100) + `1]}`,
	} {
		_, _, whole := written(t, inPool, body)
		var h prefix.Hasher
		for n := len(`{"model":"m",`); n < len(body); n++ {
			r, err := openai.ParsePrefix(openai.JSON, "", []byte(body[:n]))
			if err != nil {
				t.Fatalf("%q: %v", body[:n], err)
			}
			r.Prompt([]byte(body[:n]), inPool, &h)
			if got := h.Blocks(); len(got) > len(whole) || !slices.Equal(got, whole[:len(got)]) {
				t.Fatalf("%q has other blocks than the whole", body[:n])
			}
		}
		if len(h.Blocks()) < len(whole)-1 {
			t.Errorf("all but the last byte gives %d blocks, and the whole %d", len(h.Blocks()), len(whole))
		}
	}
}

// The existing part of a truncated string is written.
func TestPromptOfATruncatedString(t *testing.T) {
	for _, before := range []string{
		`{"model":"m","prompt":"`, `{"model":"m","messages":[{"role":"user","content":"`,
		`{"model":"m","messages":[{"content":[{"text":"`,
	} {
		body := []byte(before + strings.Repeat("word ", 200))
		r, err := openai.ParsePrefix(openai.JSON, "", body)
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Prompt(body, inPool, new(prefix.Hasher)); p.Bytes < 1000 {
			t.Errorf("%s: %d bytes, want 1000", before, p.Bytes)
		}
	}
	// An escaped quote or half of an escape does not end a string.
	for prompt, want := range map[string]int{
		`"`: 0, `"a`: 1, `"a"`: 1, `"a\"`: 3, `"a\\"`: 3, `"a\\\"`: 5, `"\"`: 2, `"\\"`: 2, `"a\`: 2, `""`: 0,
	} {
		body := []byte(`{"model":"m","prompt":` + prompt)
		r, err := openai.ParsePrefix(openai.JSON, "", body)
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Prompt(body, inPool, new(prefix.Hasher)); p.Bytes != want {
			t.Errorf("%s: %d bytes, want %d", body, p.Bytes, want)
		}
	}
}

// A form has no prompt, and a Request that was not parsed has none either.
func TestNoPrompt(t *testing.T) {
	body := []byte("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n")
	r, err := openai.Parse(openai.Form, "multipart/form-data; boundary=b", body)
	if err != nil {
		t.Fatal(err)
	}
	unread := []byte(`{"model":"m","prompt":"x"}`)
	for body, r := range map[*[]byte]openai.Request{&body: r, &unread: {}} {
		if p := r.Prompt(*body, inPool, new(prefix.Hasher)); p != (openai.Prompt{}) {
			t.Errorf("%s: %+v", *body, p)
		}
	}
}

// For any body, reading the prompt takes time proportional to the size of the body.
func TestHostilePromptsTakeLinearTime(t *testing.T) {
	const size = 1 << 20
	fill := func(before, what, after string) string {
		return `{"model":"m",` + before + strings.Repeat(what, size/len(what)) + after + "}"
	}
	for name, body := range map[string]string{
		"many turns":        fill(`"messages":[`, `{},`, `{}]`),
		"many parts":        fill(`"messages":[{"content":[`, `{"a":1},`, `1]}]`),
		"many members":      fill(`"messages":[{`, `"a":1,`, `"b":1}]`),
		"many members of a": fill("", `"messages":[1],`, `"a":1`),
		"many escapes":      fill(`"messages":[{"content":"`, `\"`, `"}]`),
		"many backslashes":  fill(`"messages":[{"content":"`, `\\`, `"}]`),
		"many keys escaped": fill(`"messages":[{`, `"\"":1,`, `"b":1}]`),
		"many tokens":       fill(`"prompt":[`, `1,`, `1]`),
		"many salts":        fill("", `"cache_salt":"a",`, `"a":1`),
		"many prompts":      fill(`"prompt":[`, `"a",`, `"b"]`),
		"many lists":        fill(`"prompt":[`, `[1],`, `[1]]`),
		"many images":       fill(`"messages":[{"content":[`, `{"image":1},`, `1]}]`),
		"many tools":        fill(`"messages":[{"content":[`, `{"content":[{"image":1}]},`, `1]}]`),
		"much space":        fill(`"messages":[`, " ", `]`),
	} {
		began := time.Now()
		written(t, inPool, body)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: it takes %v", name, took)
		}
	}
	// The beginning of a body is not checked for valid JSON.
	for name, what := range map[string]string{
		"lists": "[", "objects": `{"a":`, "parts": `{"content":[`, "ends": "]", "quotes": `"`,
		"commas": ",", "colons": ":",
	} {
		body := []byte(`{"model":"m","messages":[` + strings.Repeat(what, size/len(what)))
		r, err := openai.ParsePrefix(openai.JSON, "", body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		began := time.Now()
		r.Prompt(body, inPool, new(prefix.Hasher))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: it takes %v", name, took)
		}
	}
}

// Reading a prompt allocates nothing, however long it is.
func TestReadingAPromptAllocatesNothing(t *testing.T) {
	var h prefix.Hasher
	for _, body := range [][]byte{chat(1 << 10), chat(256 << 10), []byte(`{"model":"m","prompt":[1,2,3]}`)} {
		r, err := openai.Parse(openai.JSON, "", body)
		if err != nil {
			t.Fatal(err)
		}
		if allocs := testing.AllocsPerRun(20, func() { r.Prompt(body, inPool, &h) }); allocs > 0 {
			t.Errorf("%d bytes: %v allocations, want none", len(body), allocs)
		}
	}
}

// FuzzPrompt checks that Prompt returns for any body, whole or truncated, and that the returned
// size is at most proportional to the body.
func FuzzPrompt(f *testing.F) {
	f.Add([]byte(`{"model":"m","tools":[{}],"messages":[{"role":"user","content":[{"type":"text","text":"Hi"},{"a":[1]}],"name":"x"}],"cache_salt":"s"}`))
	f.Add([]byte(`{"model":"m","prompt":[[1,2],[3]],"input":["a"],"system":[{"text":5}],"max_tokens":5}`))
	f.Add([]byte(`{"model":"m","messages":[{"content":[{"image":1},{"file":1}]},{"output":[{"file":1}]}]}`))
	f.Add([]byte(`{"model":"m","messages":[{"content":["\`))
	f.Add([]byte(`{"model":"m","messages":[}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []func(openai.Operation, string, []byte) (openai.Request, error){openai.Parse, openai.ParsePrefix} {
			r, err := parse(openai.JSON, "", body)
			if err != nil {
				continue
			}
			var h prefix.Hasher
			p := r.Prompt(body, inPool, &h)
			// Among all bodies, an attachment has the most tokens per byte.
			if p.Bytes > 576*prefix.TokenBytes/len(`{"file":1}`)*len(body) || p.MaxTokens < 0 {
				t.Errorf("%q: %+v", body, p)
			}
		}
	})
}
