package openai_test

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/prefix"
)

var mutations = flag.Int("mutations", 20_000, "number of mutated bodies that TestBodiesAreParsedAsByTheOracles parses")

// Parse gives the same result as the parser that it replaced, and accepts exactly the JSON that
// encoding/json accepts. The prompt has the same blocks as if its parts were searched separately.
func TestBodiesAreParsedAsByTheOracles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	valid, named := 0, 0
	for range *mutations {
		body := []byte(bodies[random.IntN(len(bodies))])
		for range 1 + random.IntN(3) {
			body = mutate(random, body)
		}
		is := parsesAsTheOracles(t, body)
		if json.Valid(body) {
			valid++
		}
		if is.model != "" {
			named++
		}
	}
	if valid < *mutations/5 || valid > *mutations*4/5 || named < *mutations/10 {
		t.Errorf("of %d bodies %d are valid and %d name a model", *mutations, valid, named)
	}
}

// parsesAsTheOracles fails the test if Parse and the oracles disagree about a body.
func parsesAsTheOracles(t *testing.T, body []byte) parsed {
	t.Helper()
	got := parse(body)
	if want := replaced(body); got != want {
		t.Fatalf("%.2000q is parsed as %+v, want %+v", body, got, want)
	}
	invalid := got.fault == "The body is not valid JSON." || got.fault == "The request has no body: send a JSON object." ||
		got.fault == "The body is nested too deep."
	if json.Valid(body) == invalid {
		t.Fatalf("%.2000q: %q, but encoding/json says %v", body, got.fault, !invalid)
	}
	if got.fault == "" {
		r, _ := openai.Parse(openai.JSON, "", body)
		var one, other prefix.Hasher
		if got, want := r.Prompt(body, inPool, &one), r.Truncated().Prompt(body, inPool, &other); got != want {
			t.Fatalf("%.2000q has the prompt %+v, want %+v", body, got, want)
		}
		if full(&one) != full(&other) || !slices.Equal(one.Blocks(), other.Blocks()) {
			t.Fatalf("%.2000q has other blocks if its parts are searched separately", body)
		}
	}
	return got
}

// bodies are what mutated bodies are made of.
var bodies = []string{
	string(chat(1 << 10)),
	`{"model":"a/b","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"say \"model\": {} \\\\"}],"stream":true}`,
	"{\n  \"messages\": [ {\"role\" : \"user\", \"content\": [{\"type\":\"text\",\"text\":\"caf\u00e9 \\u00e9 \\ud83d\\ude00\"}]} ],\n  \"model\": \"m\" \r\n\t}\n",
	`{"model":"m","previous_response_id":"resp_1","input":"Hi","instructions":"Be brief.","max_output_tokens":17,"n":2,"stream":false}`,
	`{"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1,-0.5e+3,0,null,true,false,{}]}}}],"prompt":[[1,2],[3]],"model":"m"}`,
	`{"mod\u0065l":"\u0061\ud83d\ude00","cache_salt":"s","prompt":["one","two"],"best_of":3}`,
	`{"model":"m","system":[{"type":"text","text":"x","cache_control":{}}],"messages":[{"content":[{"type":"image","source":"x"}]}],"max_tokens":9}`,
	`{"Model":"m"}`, `{"model":"a","model":"b"}`, `{"model":null,"x":""}`, `{}`, ` [] `, `"text"`, `-1.5e3`, ` null`, "",
	`{"model":"m","deep":` + strings.Repeat(`[{"a":`, 40) + `1` + strings.Repeat(`}]`, 40) + `}`,
	`{"model":"m","prompt":"` + strings.Repeat("0123456\\n89abcdef \u6a21\u578b ", 20) + `"}`,
}

// tokens are bytes that matter to a parser, which mutate inserts.
var tokens = []string{
	`"`, `\`, `\"`, `\\`, `\u`, `\u00e9`, `\ud800`, `\uDFFF`, `\x`, `\/`, "{", "}", "[", "]", ",", ":", " ", "\n",
	"\x00", "\x1f", "\x7f", "\x80", "\xff", "\xa2", "\xdc", "\xc3\xa9", "\xed\xa0\x80", "\xef\xbb\xbf", "\u00a0", "\v",
	"0", "-", "1", ".5", "e9", "E+1", "true", "false", "null", "nul", "NaN", "[[]]", `{"a":{}}`, `"":0,`,
	`"model":"x",`, `"Model":1,`, `"stream":true,`, `"prompt":"p",`, `"messages":[],`, `"previous_response_id":"r",`,
}

// mutate changes, removes, repeats, moves or inserts bytes, or truncates the body.
func mutate(random *rand.Rand, body []byte) []byte {
	at := random.IntN(len(body) + 1)
	end := at + random.IntN(min(len(body)-at, 24)+1)
	switch random.IntN(8) {
	case 0, 1, 2:
		return slices.Insert(body, at, []byte(tokens[random.IntN(len(tokens))])...)
	case 3:
		return slices.Replace(body, at, end, []byte(tokens[random.IntN(len(tokens))])...)
	case 4:
		return slices.Delete(body, at, end)
	case 5:
		return slices.Insert(body, random.IntN(len(body)+1), slices.Clone(body[at:end])...)
	case 6:
		if at < len(body) {
			body[at] = byte(random.IntN(256))
		}
		return body
	}
	if random.IntN(8) == 0 {
		return body[:at]
	}
	return swap(random, body)
}

// swap exchanges two members of the body, if it finds two that are simple.
func swap(random *rand.Rand, body []byte) []byte {
	parts := strings.Split(string(body), `,"`)
	if len(parts) < 3 {
		return body
	}
	i, j := 1+random.IntN(len(parts)-1), 1+random.IntN(len(parts)-1)
	parts[i], parts[j] = parts[j], parts[i]
	return []byte(strings.Join(parts, `,"`))
}

// Every byte in every position of a word of eight bytes, and at the end of a body, is read as by
// the oracles, within a key and within a value.
func TestEveryByteInEveryPosition(t *testing.T) {
	for c := range 256 {
		for before := range 17 {
			for _, after := range []int{0, 3, 9} {
				content := strings.Repeat("a", before) + string([]byte{byte(c)}) + strings.Repeat("b", after)
				for _, body := range []string{`{"model":"m","x":"` + content + `"}`, `{"` + content + `":1,"model":"m"}`, `"` + content, content} {
					parsesAsTheOracles(t, []byte(body))
				}
			}
		}
	}
}

// Deep and large bodies are parsed as before. The error of a body that is both invalid and too deep
// depends on the depth.
func TestDeepAndLargeBodies(t *testing.T) {
	const most = 10_000
	for name, body := range map[string]string{
		"lists":                         strings.Repeat("[", most) + strings.Repeat("]", most),
		"lists, too deep":               strings.Repeat("[", most+1) + strings.Repeat("]", most+1),
		"objects":                       strings.Repeat(`{"a":`, most) + "1" + strings.Repeat("}", most),
		"objects, too deep":             strings.Repeat(`{"a":`, most+1) + "1" + strings.Repeat("}", most+1),
		"in a member":                   `{"model":"m","a":` + strings.Repeat("[", most-1) + strings.Repeat("]", most-1) + "}",
		"in a member, too deep":         `{"model":"m","a":` + strings.Repeat("[", most) + strings.Repeat("]", most) + "}",
		"invalid before it is too deep": "x" + strings.Repeat("[", most+1),
		"not closed":                    strings.Repeat("[", most),
		"not closed, too deep":          strings.Repeat("[", most+1),
		"32 MiB of brackets":            strings.Repeat("[", 32<<20),
		"32 MiB of objects":             strings.Repeat(`{"a":`, 32<<20/5),
		"32 MiB of text":                `{"prompt":"` + strings.Repeat("word ", 32<<20/5) + `","model":"m"}`,
		"4 MiB of escapes":              `{"prompt":"` + strings.Repeat(`\n\"`, 4<<20/4) + `","model":"m"}`,
		"4 MiB of members":              `{` + strings.Repeat(`"a":1,`, 4<<20/6) + `"model":"m"}`,
		"4 MiB of space":                strings.Repeat(" ", 4<<20) + `{"model":"m"}`,
	} {
		t.Run(name, func(t *testing.T) { parsesAsTheOracles(t, []byte(body)) })
	}
}
