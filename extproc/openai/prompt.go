package openai

import (
	"bytes"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/headgate/headgate/extproc/prefix"
)

// Prompt is what is known of how long an engine will have to do with a request. The text of the prompt is not kept.
type Prompt struct {
	// Bytes is how long the prompt is as the body has it, or all of several. A token that is given by its id is prefix.TokenBytes, and
	// an attachment attachmentTokens of these.
	Bytes int
	// MaxTokens is the longest answer that the client wants, in tokens; 0 if it does not say.
	MaxTokens int
}

// attachmentTokens is what an image, a sound, a video or a file counts, whose bytes are none of a prompt's text: as many as LLaVA-1.5 makes
// of an image (24 x 24 patches of 14 x 14 pixels). What other models make of theirs is learned with how many bytes make a token.
const attachmentTokens = 576

// What begins in a prompt, for a [prefix.Hasher]. No JSON has these bytes.
const (
	markTools byte = 1 + iota
	markSystem
	markTurn
	markContent
	markOther
	markMember
)

// Prompt writes the prompt of the body that r was parsed from to h, in the order in which chat templates put it, whatever the order
// in the body: tools, what the system is told, then each turn with its role before its content. A prompt of token ids is written as
// these, and an attachment as tokens that its hash makes. Strings are written as they stand in the body, escapes and all; so are the values
// of members that no template is known to read. Of several prompts, the first is written, and the others are counted.
//
// Of a body that is not whole it writes what is there. It takes time in proportion to the body, however that is nested, and keeps
// none of it.
func (r Request) Prompt(body []byte, of prefix.Scope, h *prefix.Hasher) Prompt {
	var tools, system, instructions, messages, input, prompt, salt, most, mostNew, mostOut []byte
	if r.op == JSON {
		for all := inside(body); all.next(); {
			switch string(all.key) {
			case "tools":
				tools = all.value
			case "system": // of Anthropic's messages
				system = all.value
			case "instructions": // of responses
				instructions = all.value
			case "messages":
				messages = all.value
			case "input": // of responses, embeddings and others
				input = all.value
			case "prompt": // of completions
				prompt = all.value
			case "cache_salt":
				salt = all.value
			case "max_tokens":
				most = all.value
			case "max_completion_tokens":
				mostNew = all.value
			case "max_output_tokens":
				mostOut = all.value
			}
		}
	}
	if given(salt) {
		of.Salt = string(text(salt))
	}
	h.Begin(of.Seed())
	w := promptWriter{h}
	if given(tools) {
		h.Mark(markTools)
		h.Write(tools)
	}
	for _, told := range [...][]byte{system, instructions} {
		if given(told) {
			h.Mark(markSystem)
			w.content(told)
		}
	}
	others := 0
	for _, turns := range [...][]byte{messages, input, prompt} {
		others += w.turns(turns)
	}
	return Prompt{h.Bytes() + others, firstNumber(mostNew, most, mostOut)}
}

// given says whether there is a value, and not null.
func given(value []byte) bool { return len(value) > 0 && value[0] != 'n' }

// firstNumber is the first of some values that is a number of tokens, 0 if none is.
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

// promptWriter writes what stands in a body.
type promptWriter struct{ *prefix.Hasher }

// turns writes the turns of a conversation, or the one prompt. Of several prompts it writes the first, and returns how many bytes the others
// have.
func (w promptWriter) turns(value []byte) (others int) {
	if !given(value) {
		return 0
	}
	if value[0] != '[' {
		w.Write(text(value))
		return 0
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
			return 0
		}
	}
	return others
}

// turn writes one turn: its role, its content and then all else.
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

// content writes what is said: a string, or parts. A string is as good as one part.
func (w promptWriter) content(value []byte) {
	if len(value) == 0 || value[0] != '[' {
		w.Mark(markContent)
		w.Write(text(value))
		return
	}
	w.parts(value, true)
}

// parts writes all parts of a list. Deep says that they may have parts of their own, as what a tool gave has.
func (w promptWriter) parts(list []byte, deep bool) {
	for all := inside(list); all.next(); {
		w.part(all.value, deep)
	}
}

// part writes the text of a part, or all of one that has none.
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

// names says whether what a part is called, or a member of it, is that of an attachment.
func names(what []byte) bool {
	for _, attachment := range [...]string{"image", "audio", "video", "file", "document"} {
		if bytes.Contains(what, []byte(attachment)) {
			return true
		}
	}
	return false
}

// attachment writes a part that is no text.
func (w promptWriter) attachment(part []byte) {
	var d xxhash.Digest
	d.Reset()
	for all := inside(part); all.next(); {
		if string(all.key) != cacheControl {
			_, _ = d.Write(all.value)
		}
	}
	w.Opaque(d.Sum64(), attachmentTokens)
}

// cacheControl is a member of Anthropic's, which clients move from turn to turn.
const cacheControl = "cache_control"

// member writes a member as it stands there; the parts that it has one by one, where that is deep enough.
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

// eachToken visits the ids of a list. A number at the end of what is there may go on, and is left out.
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

// text is what is in a string, with its escapes, or any other value as it stands there.
func text(value []byte) []byte {
	if len(value) == 0 || value[0] != '"' {
		return value
	}
	if end := endOfString(value, 0); end > 0 {
		return value[1 : end-1]
	}
	return value[1:]
}

// items goes through what is in an object or a list, the end of which may not be there. It goes on for as long as it finds JSON.
type items struct {
	rest   []byte
	object bool
	key    []byte // of a member, as it is written, without quotes
	value  []byte // never empty
}

// inside are the items of a value; a value that is neither object nor list has none.
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

// skip passes a byte over, and space before and behind it.
func (i *items) skip(c byte) {
	at := skipSpace(i.rest, 0)
	if at < len(i.rest) && i.rest[at] == c {
		at = skipSpace(i.rest, at+1)
	}
	i.rest = i.rest[at:]
}

// endOfAny returns the index after the value that body begins with, or its length where the value does not end; 0 if there is none.
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
