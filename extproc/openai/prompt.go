package openai

import (
	"bytes"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/headgate/headgate/extproc/prefix"
)

// Prompt is the part of a request's size on which an engine's time depends. It does not contain the
// text.
type Prompt struct {
	// Bytes is the size of the prompt in the body; if there are several prompts, the sum. A token
	// id counts as prefix.TokenBytes, and an attachment as attachmentTokens token ids.
	Bytes int
	// MaxTokens is the client's limit of output tokens of each answer; 0 if there is none.
	MaxTokens int
	// Answers is the number of answers that the request asks for: one or more for each prompt. It
	// is at least 1 if the body has a prompt.
	Answers int
	// Attached means that there is an image, sound, video or file. Its number of tokens is unknown.
	Attached bool
}

// attachmentTokens is the number of tokens for which an image, sound, video or file counts.
// LLaVA-1.5 has as many for an image (24 x 24 patches of 14 x 14 pixels). For other models, the
// learned number of bytes per token corrects the error.
const attachmentTokens = 576

// Bytes that mark the parts of a prompt, for a [prefix.Hasher]. JSON does not contain these bytes.
const (
	markTools byte = 1 + iota
	markSystem
	markTurn
	markContent
	markOther
	markMember
)

// Prompt writes the prompt of body to h. Body is the body from which r was parsed. The order of the
// parts is that of chat templates, whatever their order in the body: tools, the system prompt, then
// each turn with its role before its content. Prompt writes token ids as ids, and an attachment as
// tokens derived from its hash. It writes strings as they are in the body, with escapes, and
// likewise members that no known template reads. Of several prompts, it writes the first and adds
// only the size of the others.
//
// Of a truncated body, Prompt writes the existing part. The time is linear in the size of the body,
// however deeply the body nests. Prompt keeps no reference to the body.
func (r Request) Prompt(body []byte, of prefix.Scope, h *prefix.Hasher) Prompt {
	if r.op != JSON {
		body = nil
	}
	all := r.parts
	if r.truncated {
		all = partsOf(body)
	}
	if salt := all.salt.of(body); given(salt) {
		of.Salt = string(text(salt))
	}
	h.Begin(of.Seed())
	attached := false
	w := promptWriter{h, &attached}
	if tools := all.tools.of(body); given(tools) {
		h.Mark(markTools)
		h.Write(tools)
	}
	for _, told := range [...]span{all.system, all.instructions} {
		if told := told.of(body); given(told) {
			h.Mark(markSystem)
			w.content(told)
		}
	}
	others, prompts := 0, 0
	for _, turns := range [...]span{all.messages, all.input, all.prompt} {
		bytes, more := w.turns(turns.of(body))
		others, prompts = others+bytes, max(prompts, more)
	}
	return Prompt{
		Bytes: h.Bytes() + others, MaxTokens: firstNumber(all.mostNew.of(body), all.most.of(body), all.mostOut.of(body)),
		Answers:  prompts * max(1, firstNumber(all.choices.of(body)), firstNumber(all.best.of(body))),
		Attached: attached,
	}
}

// given is true if a value exists and is not null.
func given(value []byte) bool { return len(value) > 0 && value[0] != 'n' }

// firstNumber returns the first value that is a positive number of tokens; 0 if there is none.
func firstNumber(values ...[]byte) int {
	for _, v := range values {
		if len(v) > 0 && len(v) < 10 {
			if n, err := strconv.ParseUint(string(v), 10, 32); err == nil && n > 0 {
				return int(n) //nolint:gosec // nine digits
			}
		}
	}
	return 0
}

// promptWriter writes the parts of a body to a Hasher.
type promptWriter struct {
	*prefix.Hasher
	attached *bool // set when an attachment is written
}

// turns writes the turns of a conversation, or a prompt. Of several prompts it writes the first,
// and returns the total size of the others, and the number of all. A conversation is one prompt.
func (w promptWriter) turns(value []byte) (others, prompts int) {
	if !given(value) {
		return 0, 0
	}
	if value[0] != '[' {
		w.Write(text(value))
		return 0, 1
	}
	first := true
	for all := inside(value); all.next(); first = false {
		switch is := all.value; {
		case is[0] == '{':
			w.turn(is)
		case is[0] == '"' && first:
			w.Write(text(is))
		case is[0] == '"':
			others += len(text(is))
		case is[0] == '[' && first:
			eachToken(is, w.Token)
		case is[0] == '[':
			eachToken(is, func(uint32) { others += prefix.TokenBytes })
		case first:
			eachToken(value, w.Token)
			return 0, 1
		}
		if all.value[0] != '{' {
			prompts++
		}
	}
	return others, max(1, prompts)
}

// turn writes one turn of a conversation: its role, its content and then all other members.
func (w promptWriter) turn(object []byte) {
	var role, content []byte
	others := false
	for all := inside(object); all.next(); {
		switch string(all.key) {
		case "role":
			role = all.value
		case "content":
			content = all.value
		default:
			others = true
		}
	}
	w.Mark(markTurn)
	w.Write(text(role))
	w.content(content)
	if !others {
		return
	}
	w.Mark(markOther)
	for all := inside(object); all.next(); {
		if key := string(all.key); key != "role" && key != "content" {
			w.member(all, true)
		}
	}
}

// content writes the content of a turn: a string, or a list of parts. A string has the same hash as
// a list with one part.
func (w promptWriter) content(value []byte) {
	if len(value) == 0 || value[0] != '[' {
		w.Mark(markContent)
		w.Write(text(value))
		return
	}
	w.parts(value, true)
}

// parts writes the parts of a list. Deep means that each part may contain parts, as a tool's result
// does.
func (w promptWriter) parts(list []byte, deep bool) {
	for all := inside(list); all.next(); {
		w.part(all.value, deep)
	}
}

// part writes the text of a part, or the whole part if it has no text.
func (w promptWriter) part(value []byte, deep bool) {
	if value[0] == '{' {
		var said []byte
		attached := false
		for all := inside(value); all.next(); {
			switch string(all.key) {
			case "text":
				said = all.value
			case "type":
				attached = attached || names(all.value)
			default:
				attached = attached || names(all.key)
			}
		}
		switch {
		case len(said) > 0 && said[0] == '"':
			value = said
		case attached:
			w.attachment(value)
			return
		default:
			w.Mark(markOther)
			for all := inside(value); all.next(); {
				w.member(all, deep)
			}
			return
		}
	}
	w.Mark(markContent)
	w.Write(text(value))
}

// names is true if this type of a part, or this name of a member, is that of an attachment.
func names(what []byte) bool {
	for _, attachment := range [...]string{"image", "audio", "video", "file", "document"} {
		if bytes.Contains(what, []byte(attachment)) {
			return true
		}
	}
	return false
}

// attachment writes a part that has no text.
func (w promptWriter) attachment(part []byte) {
	*w.attached = true
	var d xxhash.Digest
	d.Reset()
	for all := inside(part); all.next(); {
		if string(all.key) != cacheControl {
			_, _ = d.Write(all.value)
		}
	}
	w.Opaque(d.Sum64(), attachmentTokens)
}

// cacheControl is a member in Anthropic's API that clients move from one turn to a later one.
const cacheControl = "cache_control"

// member writes a member as it is in the body. If deep is true, it writes the parts in the member
// one by one.
func (w promptWriter) member(is items, deep bool) {
	key := string(is.key)
	if key == cacheControl {
		return
	}
	w.Mark(markMember)
	w.Write(is.key)
	w.Mark(markMember)
	if deep && is.value[0] == '[' && (key == "content" || key == "output") {
		w.parts(is.value, false)
		return
	}
	w.Write(is.value)
}

// eachToken visits the token ids in a list. It skips a number at the end of a truncated body,
// because the number may be incomplete.
func eachToken(list []byte, visit func(id uint32)) {
	id, digits := uint32(0), false
	for _, c := range list[1:] {
		if c >= '0' && c <= '9' {
			id, digits = id*10+uint32(c-'0'), true
			continue
		}
		if digits {
			visit(id)
		}
		id, digits = 0, false
	}
}

// text returns the content of a string, with escapes, or any other value unchanged. Value is a
// whole value, or the rest of a truncated body.
func text(value []byte) []byte {
	if len(value) == 0 || value[0] != '"' {
		return value
	}
	last := len(value) - 1
	if last == 0 || value[last] != '"' {
		return value[1:]
	}
	escapes := 0
	for value[last-1-escapes] == '\\' { // the loop ends at the opening quote at the latest
		escapes++
	}
	if escapes%2 == 1 {
		return value[1:]
	}
	return value[1:last]
}

// items iterates over an object or a list that may be truncated. It stops at invalid JSON.
type items struct {
	rest   []byte
	object bool
	key    []byte // key of a member, escaped and without quotes
	value  []byte // value of the item; never empty
}

// inside returns the items in a value. Only objects and lists have items.
func inside(value []byte) items {
	start := skipSpace(value, 0)
	if start == len(value) || value[start] != '{' && value[start] != '[' {
		return items{}
	}
	return items{rest: value[start+1:], object: value[start] == '{'}
}

// next finds the next item.
func (i *items) next() bool {
	i.skip(',')
	if i.object {
		if len(i.rest) == 0 || i.rest[0] != '"' {
			return false
		}
		end := endOfString(i.rest, 0)
		if end == 0 {
			return false
		}
		i.key, i.rest = i.rest[1:end-1], i.rest[end:]
		i.skip(':')
	}
	end := endOfAny(i.rest)
	i.value, i.rest = i.rest[:end], i.rest[end:]
	return end > 0
}

// skip skips the byte c, and the space around it.
func (i *items) skip(c byte) {
	at := skipSpace(i.rest, 0)
	if at < len(i.rest) && i.rest[at] == c {
		at = skipSpace(i.rest, at+1)
	}
	i.rest = i.rest[at:]
}

// endOfAny returns the index after the value at the beginning of body. It returns the length of
// body if the value is incomplete, and 0 if there is no value.
func endOfAny(body []byte) int {
	if len(body) == 0 {
		return 0
	}
	switch body[0] {
	case '"':
		if end := endOfString(body, 0); end > 0 {
			return end
		}
		return len(body)
	case '{', '[':
		for i, depth := 0, 0; i < len(body); i++ {
			switch body[i] {
			case '"':
				end := endOfString(body, i)
				if end == 0 {
					return len(body)
				}
				i = end - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return len(body)
	}
	i := 0
	for i < len(body) && !endsScalar(body[i]) {
		i++
	}
	return i
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}
