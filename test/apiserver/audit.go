package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Request is the audit log's entry for a request.
type Request struct {
	ID       string    `json:"auditID"`
	Received time.Time `json:"requestReceivedTimestamp"`
	Stage    string    `json:"stage"` // ResponseStarted for a watch that still runs, otherwise ResponseComplete
	Verb     string    `json:"verb"`
	URI      string    `json:"requestURI"`
	User     User      `json:"user"`
	Agent    string    `json:"userAgent"`
	Object   Object    `json:"objectRef"` // empty if the path is not that of a resource
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"` // authorization.k8s.io/decision (allow or forbid), authorization.k8s.io/reason
}

// User is the user who sent a request.
type User struct {
	Name   string   `json:"username"`
	Groups []string `json:"groups"`
}

// Object identifies the object of a request.
type Object struct {
	Group       string `json:"apiGroup"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
}

// Denied reports whether RBAC denied the request.
func (r Request) Denied() bool { return r.Annotations["authorization.k8s.io/decision"] == "forbid" }

// Requests reads an audit log. It returns each request once, in order of arrival, with the content
// of its last line. It ignores an incomplete last line of the file.
func Requests(path string) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseRequests(f)
}

func parseRequests(log io.Reader) ([]Request, error) {
	var all []Request
	at := make(map[string]int) // by request id: its index in all
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		var r Request
		if err := json.Unmarshal(bytes.TrimSpace(line), &r); err != nil {
			return nil, fmt.Errorf("line %d of the audit log: %w", len(all)+1, err)
		}
		if i, seen := at[r.ID]; seen {
			all[i] = r
			continue
		}
		at[r.ID] = len(all)
		all = append(all, r)
	}
}
