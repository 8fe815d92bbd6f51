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

// Request is a request in the audit log.
type Request struct {
	ID       string    `json:"auditID"`
	Received time.Time `json:"requestReceivedTimestamp"`
	Stage    string    `json:"stage"` // ResponseStarted for a watch that goes on, else ResponseComplete
	Verb     string    `json:"verb"`
	URI      string    `json:"requestURI"`
	User     User      `json:"user"`
	Agent    string    `json:"userAgent"`
	Object   Object    `json:"objectRef"` // empty for a path that is not a resource
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"` // authorization.k8s.io/decision is allow or forbid, /reason the binding
}

// User is the user who sent a request.
type User struct {
	Name   string   `json:"username"`
	Groups []string `json:"groups"`
}

// Object is the object of a request.
type Object struct {
	Group       string `json:"apiGroup"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
}

// Denied reports whether RBAC denied the request.
func (r Request) Denied() bool { return r.Annotations["authorization.k8s.io/decision"] == "forbid" }

// Requests reads an audit log. It returns each request once, in order of arrival, as of its last
// line. An incomplete last line is ignored.
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
	at := make(map[string]int) // index in all, by ID
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
