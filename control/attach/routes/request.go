package routes

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// question asks which rule takes a request.
type question struct {
	request plan.Request
	gateway string // NAMESPACE/NAME; empty for all
	port    int32  // 0 for all
}

// read reads the request from the command line.
func (q *question) read(host, path string, headers []string) error {
	q.request.Host, q.request.Path, q.request.Headers = host, path, make(map[string]string)
	for _, line := range headers {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return fmt.Errorf("--header %q: want NAME: VALUE", line)
		}
		q.request.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return nil
}

// answer prints which rule takes the request at each Gateway and port.
func (q *question) answer(plans *plan.Plans, out io.Writer) error {
	asked := false
	for _, p := range plans.Gateways {
		if q.gateway != "" && q.gateway != p.Gateway.String() {
			continue
		}
		for i := range p.Ports {
			if q.port == 0 || q.port == p.Ports[i].Number {
				asked = true
				if _, err := io.WriteString(out, text(p.Gateway, &p.Ports[i], q.request)); err != nil {
					return err
				}
			}
		}
	}
	if !asked {
		return errors.New("no Gateway of Headgate's classes serves this; headgate routes without HOST and PATH prints all")
	}
	return nil
}

// text explains which rule of a port matches a request.
func text(gateway objects.Name, p *plan.Port, r plan.Request) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Gateway %s, port %d: ", gateway, p.Number)
	t := p.Take(r)
	switch {
	case t.Host == nil:
		fmt.Fprintf(&out, "404: no listener has the host %s\n", r.Host)
		return out.String()
	case t.Rule == nil:
		fmt.Fprintf(&out, "404: listener %s has the host, and no rule of it matches\n", t.Listener)
	default:
		fmt.Fprintf(&out, "listener %s, %s\n", t.Listener, t.Rule)
	}
	inference := 0
	for _, passed := range t.Passed {
		if passed.Forward != nil && passed.Forward.Models {
			inference++
			continue
		}
		fmt.Fprintf(&out, "  not %s: %s\n", passed.Rule, passed.Why)
	}
	if inference > 0 {
		fmt.Fprintf(&out, "  not %d inference paths of LLMRoutes\n", inference)
	}
	return out.String()
}
