package explain

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
)

// record is one line of Envoy's access log, as envoy.yaml writes it.
type record struct {
	Time      time.Time      `json:"time"`
	ID        string         `json:"id"`
	Status    int            `json:"status"`
	Call      any            `json:"grpc_status"`
	Flags     string         `json:"flags"`
	Details   string         `json:"details"`
	Error     string         `json:"error"`
	Total     float64        `json:"ms_total"`
	FirstBody float64        `json:"ms_first_body"`
	Picks     string         `json:"picks"`
	Endpoint  string         `json:"endpoint"`
	Attempts  int            `json:"attempts"`
	Pick      map[string]any `json:"pick"`
	Usage     map[string]any `json:"usage"`
}

// maxLine is the maximum length of a record in an access log, which has a few hundred bytes.
const maxLine = 1 << 20

// ofLog prints the requests with an id in an access log.
func ofLog(name, id, format string, out io.Writer) error {
	from := io.Reader(os.Stdin)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		defer file.Close()
		from = file
	}
	all, lines, err := search(from, id)
	switch {
	case err != nil:
		return fmt.Errorf("--log %s: %w", name, err)
	case lines == 0:
		return fmt.Errorf("--log %s has no records: want Envoy's access log, with a JSON object per line", name)
	case len(all) == 0:
		return fmt.Errorf("--log %s has %d requests, and none with the id %q", name, lines, id)
	case format == "json":
		return printJSON(out, all)
	}
	var text strings.Builder
	for i := range all {
		story(&text, &all[i], "")
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// search returns the requests with an id in an access log, the latest first, and the number of
// records. It skips lines longer than maxLine and other lines, because programs may log to the same
// file.
func search(from io.Reader, id string) (all []admin.Decision, records int, err error) {
	lines := bufio.NewReader(from)
	for {
		text, err := next(lines)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, records, err
		}
		if r, ok := parse(text); ok {
			if records++; r.ID == id {
				all = append(all, r.decision())
			}
		}
		if err != nil {
			slices.Reverse(all)
			return all, records, nil
		}
	}
}

// next returns the next line, or no text if it is longer than maxLine. The error is io.EOF after
// the last line.
func next(lines *bufio.Reader) (text []byte, err error) {
	for long := false; ; {
		part, err := lines.ReadSlice('\n')
		if long = long || len(text)+len(part) > maxLine; long {
			text = nil
		} else {
			text = append(text, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}

// parse reads a line of an access log.
func parse(text []byte) (r record, ok bool) {
	text = bytes.TrimSpace(text)
	if at := bytes.IndexByte(text, '{'); at > 0 {
		text = text[at:] // docker compose and journalctl write a prefix before the record
	}
	if len(text) == 0 || json.Unmarshal(text, &r) != nil || r.Time.IsZero() || r.Details == "" && r.Status == 0 && r.Flags == "" {
		return record{}, false
	}
	return r, true
}

// decision returns what a record says about the decision and the outcome.
func (r *record) decision() admin.Decision {
	text := func(of map[string]any, key string) string { s, _ := of[key].(string); return s }
	number := func(of map[string]any, key string) float64 { n, _ := of[key].(float64); return n }
	d := admin.Decision{Time: r.Time, Request: r.ID, Waited: number(r.Pick, wire.PickHold) / 1e6, Again: r.Pick[wire.PickAgain] == true}
	d.Reason, d.Band = text(r.Pick, wire.PickWaitFor), int32(number(r.Pick, wire.PickBand))
	d.Route, d.Pool, d.Fallback = text(r.Pick, wire.PickRoute), text(r.Pick, wire.PickPool), text(r.Pick, wire.PickFallbackName)
	d.Model, d.VModel, d.Target = text(r.Pick, wire.PickModel), text(r.Pick, wire.PickVModel), text(r.Pick, wire.PickModel)
	for i, endpoint := range split(r.Picks) {
		if strings.Contains(endpoint, "/") {
			d.Relay = true
			continue
		}
		c := admin.Candidate{Endpoint: endpoint}
		if i == 0 {
			c.Reason = text(r.Pick, wire.PickReason)
			if us := number(r.Pick, wire.PickFirstToken); us > 0 {
				seconds := us/1e6 - d.Waited
				c.Seconds = &seconds
			}
		}
		d.Picks = append(d.Picks, c)
	}
	o := r.outcome()
	d.Outcome = &admin.Outcome{
		Status: r.Status, Failed: string(o.Party()), Why: string(o.Failure), Endpoint: r.Endpoint, Attempts: r.Attempts,
		FirstByte: r.FirstBody / 1e3, Duration: r.Total / 1e3, PromptTokens: int(number(r.Usage, wire.UsagePrompt)),
		CompletionTokens: int(number(r.Usage, wire.UsageCompletion)),
	}
	if r.Call != nil && r.Call != "" {
		d.Outcome.Call = fmt.Sprint(r.Call)
	}
	if code, ours := strings.CutPrefix(r.Details, wire.ReplyDetails+"_"); ours {
		d.Outcome.Error = &admin.Error{Status: r.Status, Code: code}
	} else if r.Error != "" {
		d.Outcome.Why = r.Error
	}
	for _, list := range []struct{ key, did string }{
		{wire.UsageElsewhere, "asked for the request to be sent elsewhere"}, {wire.UsageMissing, "does not have the model"},
	} {
		for _, endpoint := range split(text(r.Usage, list.key)) {
			d.Outcome.Tried = append(d.Outcome.Tried, admin.Tried{Endpoint: endpoint, Did: list.did})
		}
	}
	return d
}

// outcome returns the outcome in a record, as far as it shows who failed.
func (r *record) outcome() outcome.Outcome {
	o := outcome.Outcome{
		Status: r.Status, Endpoint: r.Endpoint, ByExtproc: strings.HasPrefix(r.Details, wire.ReplyDetails),
	}
	for _, f := range []struct {
		flags   []string
		failure outcome.Failure
	}{ // the most specific flag decides, as in extproc
		{[]string{"UF"}, outcome.Refused},
		{[]string{"UC", "UR", "UPE"}, outcome.Reset},
		{[]string{"DC", "DR"}, outcome.ClientGone},
		{[]string{"UT", "SI", "DT", "UMSDR"}, outcome.TimedOut},
		{[]string{"UH", "NC"}, outcome.NoEndpoint},
		{[]string{"UO", "URX", "OM", "DPE", "LR", "NR"}, outcome.Other},
	} {
		if o.Failure == outcome.None && slices.ContainsFunc(split(r.Flags), func(is string) bool { return slices.Contains(f.flags, is) }) {
			o.Failure = f.failure
		}
	}
	if r.Details == wire.ReplyDetails+"_"+wire.EngineGone {
		o.Failure, o.ByExtproc = outcome.EngineGone, false
	}
	o.ByEnvoy = !o.ByExtproc && o.Failure == outcome.None && r.Details != "" && r.Details != "via_upstream"
	kind, _ := r.Usage[wire.UsageError].(string)
	code, _ := r.Usage[wire.UsageErrorCode].(string)
	o.Carries(kind, code)
	return o
}

func split(list string) []string {
	if list == "" || list == "-" {
		return nil
	}
	return strings.Split(list, ",")
}
