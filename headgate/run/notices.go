package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// notices reads the messages in extproc's log about edits of the objects, with file, line and
// reason.
type notices struct {
	log    string // path of the log file
	offset int64  // bytes of the log that have been read
}

// newNotices returns a reader of the messages that are logged after this call.
func newNotices(log string) *notices {
	n := &notices{log: log}
	if info, err := os.Stat(log); err == nil {
		n.offset = info.Size()
	}
	return n
}

// next returns the messages since the last call, one line each.
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
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the part after the last newline is still being written
	n.offset += int64(len(whole))
	for record := range bytes.Lines(whole) {
		if line := notice(record); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// notice formats a log record about objects as one line. For any other record it returns an empty
// text.
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
