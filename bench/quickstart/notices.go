package quickstart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// notices are what extproc says of edits of the objects, with file, line and reason: it knows what became of them, and says so in
// its log.
type notices struct {
	log    string // the file
	offset int64  // what was read of it
}

// newNotices returns those that come from now on.
func newNotices(log string) *notices {
	n := &notices{log: log}
	if info, err := os.Stat(log); err == nil {
		n.offset = info.Size()
	}
	return n
}

// next returns what was said since it was called last, a line each.
func (n *notices) next() (lines []string) {
	f, err := os.Open(n.log)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, n.offset, 1<<20))
	if err != nil {
		return nil
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the rest is being written
	n.offset += int64(len(whole))
	for record := range bytes.Lines(whole) {
		if line := notice(record); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// notice is a record of extproc's log in a line for people, if it is about objects; else empty.
func notice(record []byte) string {
	var what struct {
		Time    time.Time `json:"time"`
		Msg     string    `json:"msg"`
		Fault   string    `json:"fault"`
		Problem string    `json:"problem"`
		Note    string    `json:"note"`
		Err     string    `json:"err"`
		File    string    `json:"file"`
		Objects *int      `json:"objects"`
	}
	if err := json.Unmarshal(record, &what); err != nil || !strings.HasPrefix(what.Msg, "objects") {
		return ""
	}
	words := []string{what.Time.Local().Format("15:04:05") + " " + what.Msg}
	for _, more := range []string{what.Fault, what.Problem, what.Note, what.Err, what.File} {
		if more != "" {
			words = append(words, strings.ReplaceAll(more, "\n", " "))
		}
	}
	line := strings.Join(words, ": ")
	if what.Objects != nil {
		line += fmt.Sprintf(", %d in it", *what.Objects)
	}
	return line
}
