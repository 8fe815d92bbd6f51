package plan

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/objects"
)

// Text formats plans and the errors of their objects. It contains no keys.
func (p *Plans) Text() string {
	var out strings.Builder
	for _, g := range p.Gateways {
		fmt.Fprintf(&out, "Gateway %s\n", g.Gateway)
		for _, port := range g.Ports {
			for _, l := range port.Listeners {
				fmt.Fprintf(&out, "  port %d, %s, listener %s%s%s\n", port.Number, l.Protocol, l, with(l.Certificates), l.Clients.asks())
				for _, h := range l.Hosts {
					fmt.Fprintf(&out, "    host %s\n", cmp.Or(h.Domain, "*"))
					for _, line := range Lines(h.Rules) {
						fmt.Fprintf(&out, "      %s\n", line)
					}
				}
			}
		}
		if len(g.Headers) > 0 {
			fmt.Fprintf(&out, "  extproc gets the headers %s\n", strings.Join(g.Headers, ", "))
		}
		for _, c := range g.Clusters {
			fmt.Fprintf(&out, "  cluster %s\n", c)
		}
		for _, words := range g.Refused {
			fmt.Fprintf(&out, "  Envoys refuse %s\n", words)
		}
	}
	for _, fault := range p.Faults() {
		fmt.Fprintln(&out, fault.String(objects.Object.String))
	}
	for _, words := range p.envoys() {
		fmt.Fprintln(&out, words)
	}
	return out.String()
}

// Lines formats rules, one per line, in order. Consecutive rules of LLMRoutes share a line, since
// there is one rule for each inference path.
func Lines(rules []Rule) []string {
	var all []string
	for i := 0; i < len(rules); {
		more := 0
		for i+more+1 < len(rules) && rules[i].byModel() && rules[i+more+1].byModel() &&
			rules[i].Forward.Open == rules[i+more+1].Forward.Open {
			more++
		}
		line := rules[i].String()
		if more > 0 {
			line = fmt.Sprintf("%s and %d more of inference -> %s", rules[i].Match, more, rules[i].action())
		}
		all = append(all, line)
		i += more + 1
	}
	return all
}

// String formats the cluster in one line.
func (c Cluster) String() string {
	words := []string{c.Name}
	switch {
	case c.H2C:
		words = append(words, "HTTP/2")
	case c.Picker:
		words = append(words, "HTTP/2 by TLS")
	}
	if c.TLS != (v1alpha1.EngineTLS{}) {
		words = append(words, "TLS as "+cmp.Or(c.TLS.Hostname, "anybody"))
	}
	if s := c.Secure; s != nil {
		line := []string{"TLS as", s.Hostname}
		for _, n := range s.Names {
			line = append(line, "known as", n.Name)
		}
		if len(s.Authorities) == 0 {
			line = append(line, "by the system's authorities")
		}
		if len(s.Chain) > 0 {
			line = append(line, "with a certificate of the Gateway's")
		}
		words = append(words, strings.Join(line, " "))
	}
	if c.Open {
		words = append(words, "fails open")
	}
	return strings.Join(words, ", ")
}

func (r Rule) byModel() bool { return r.Forward != nil && r.Forward.Models }

// asks describes which clients a listener requires or requests a certificate from.
func (c *Clients) asks() string {
	switch {
	case c == nil:
		return ""
	case c.Anybody:
		return ", requests client certificates but does not require them"
	}
	return ", to clients with certificates"
}

func with(certificates []objects.Name) string {
	var words strings.Builder
	for _, name := range certificates {
		fmt.Fprintf(&words, ", Secret %s", name)
	}
	return words.String()
}

// String formats the rule in one line: its match, its action, and its route.
func (r Rule) String() string {
	line := r.Match.String() + " -> " + r.action()
	if changes := changes(r.Request, r.Response); changes != "" {
		line += "; " + changes
	}
	if r.CORS != nil {
		line += "; CORS"
	}
	if r.Of != (objects.Object{}) {
		line += fmt.Sprintf(" (%s, rule %s)", r.Of, cmp.Or(r.Name, strconv.Itoa(r.Index)))
	}
	return line
}

// String describes which requests match.
func (m Match) String() string {
	line := map[PathKind]string{Exact: "exactly ", Regex: "matching ", Prefix: "below "}[m.Kind] + m.Path
	if m.Kind == Prefix && m.Path == "/" {
		line = "any path"
	}
	if m.Method != "" {
		line = m.Method + " " + line
	}
	words := []string{line}
	for _, v := range m.Headers {
		words = append(words, "header "+v.String())
	}
	for _, v := range m.Query {
		words = append(words, "query "+v.String())
	}
	return strings.Join(words, ", ")
}

// String describes which values match.
func (v Value) String() string {
	if v.Regex {
		return v.Name + " matching " + v.Value
	}
	return v.Name + "=" + v.Value
}

// action describes what Envoy does with a matching request.
func (r Rule) action() string {
	switch f := r.Forward; {
	case r.Redirect != nil:
		return r.Redirect.String()
	case f == nil:
		return strconv.Itoa(int(r.Status))
	case f.Models:
		if f.Open != "" {
			return "the pool of its model, else " + f.Open
		}
		return "the pool of its model"
	}
	return r.Forward.words(Failed(r.Of))
}

// String describes the target of the redirect.
func (r *Redirect) String() string {
	words := []string{"redirect", strconv.Itoa(int(r.Code))}
	if r.Scheme != "" {
		words = append(words, "scheme "+r.Scheme)
	}
	if r.Host != "" {
		words = append(words, "host "+r.Host)
	}
	if r.Port != 0 {
		words = append(words, "port "+strconv.Itoa(int(r.Port)))
	}
	return strings.Join(words, " ") + r.Path.words()
}

// words describes the backends and their shares. The argument is the status of requests to a
// backend that does not resolve.
func (f *Forward) words(failed int32) string {
	var shares []string
	for _, b := range f.Backends {
		share := fmt.Sprintf("%d of %s", b.Weight, cmp.Or(b.Cluster, strconv.Itoa(int(failed))))
		if _, pool := wire.PoolOf(b.Cluster); pool && b.Picker != wire.ExtprocCluster {
			share += " as " + cmp.Or(b.Picker, "nobody") + " picks"
		}
		if changes := changes(b.Request, b.Response); changes != "" {
			share += " (" + changes + ")"
		}
		shares = append(shares, share)
	}
	words := []string{strings.Join(shares, ", ")}
	if f.Host != "" {
		words = append(words, "host "+f.Host)
	}
	words[len(words)-1] += f.Path.words()
	for _, m := range f.Mirrors {
		words = append(words, fmt.Sprintf("copies of %d/%d to %s", m.Share, m.Of, m.Cluster))
	}
	if r := f.Retry; r != nil {
		tries := fmt.Sprintf("%d more tries", r.Attempts)
		if len(r.Codes) > 0 {
			tries += fmt.Sprintf(", also of %v", r.Codes)
		}
		if r.Backoff > 0 {
			tries += fmt.Sprintf(", after %v", r.Backoff)
		}
		words = append(words, tries)
	}
	if f.Timeout > 0 {
		words = append(words, fmt.Sprintf("within %v", f.Timeout))
	}
	if f.TryTimeout > 0 {
		words = append(words, fmt.Sprintf("each try within %v", f.TryTimeout))
	}
	return strings.Join(words, "; ")
}

func (c *PathChange) words() string {
	switch {
	case c == nil:
		return ""
	case c.Whole:
		return "; path " + c.With
	}
	return "; prefix " + c.With
}

// changes describes changes of the headers of requests and responses.
func changes(request, response Headers) string {
	var all []string
	for _, side := range []struct {
		name string
		Headers
	}{{"request", request}, {"response", response}} {
		for _, name := range side.Remove {
			all = append(all, side.name+" without "+name)
		}
		for _, h := range side.Set {
			all = append(all, fmt.Sprintf("%s %s: %s", side.name, h.Name, h.Value))
		}
		for _, h := range side.Add {
			all = append(all, fmt.Sprintf("%s adds %s: %s", side.name, h.Name, h.Value))
		}
	}
	return strings.Join(all, ", ")
}
