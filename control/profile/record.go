package profile

import (
	"errors"
	"io/fs"
	"os"

	"github.com/headgate/headgate/control/profile/survey"
)

// record is a file to which each measurement is appended at once. Without a name nothing is
// written.
type record struct {
	name    string
	file    *os.File
	subject survey.Subject
}

// openRecord opens the record file of a profile and returns the rows in it. It removes an
// incomplete last line. If output is "", no file is opened.
func openRecord(output string, s survey.Subject) (*record, []survey.Row, error) {
	r := &record{subject: s}
	if output == "" {
		return r, nil, nil
	}
	r.name = survey.RecordName(output)
	text, err := os.ReadFile(r.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	rows, whole, err := s.Read(r.name, text)
	if err != nil {
		return nil, nil, err
	}
	if r.file, err = os.OpenFile(r.name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644); err != nil { //nolint:gosec // people read it
		return nil, nil, err
	}
	err = r.file.Truncate(int64(whole))
	if err == nil && whole == 0 {
		_, err = r.file.Write(s.Header())
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.file.Close())
	}
	return r, rows, nil
}

func (r *record) keep(row survey.Row) error {
	if r.file == nil {
		return nil
	}
	_, err := r.file.Write(r.subject.Line(row))
	return err
}

func (r *record) close() {
	if r.file != nil {
		_ = r.file.Close() // no data can be lost: each row was written at once
	}
}
