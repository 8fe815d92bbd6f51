package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/headgate/doctor/diagnosis"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/query"
	"github.com/headgate/headgate/internal/version"
)

const (
	// timeout is how long each program may take to answer.
	timeout = 3 * time.Second
	// together is the number of engines that are asked at the same time.
	together = 16
	// maxPage is the maximum size of an answer.
	maxPage = 4 << 20
)

// gather finds the facts.
func gather(ctx context.Context, o options, access engineclient.Access) diagnosis.Facts {
	f := diagnosis.Facts{Version: version.Read().Program}
	var w *objects.World
	if o.Kube.On {
		f.Cluster = cluster(ctx, o, &f)
	}
	// If a kind is missing or cannot be listed, the cluster's findings say so.
	if o.Dir != "" || o.Kube.On && f.Cluster.Err == "" && len(f.Cluster.Missing)+len(f.Cluster.Unread) == 0 {
		var err error
		w, err = o.Read(ctx)
		f.Objects = objectsOf(o, w, err)
		f.RouteHeaders = headersOf(w)
		if err == nil && o.Dir != "" { // pods of a cluster are out of reach from here
			askEngines(ctx, w, access, &f)
		}
	}
	if o.listen != "" && o.admin != "" {
		f.Envoy = envoy(ctx, o)
	}
	var live []admin.Condition
	f.Control, live = control(ctx, o, &f)
	states := make(map[string]conditions.Endpoint)
	f.Extproc = extproc(ctx, o, f.Control, states)
	if o.Dir != "" && w != nil {
		f.Conditions = ofFolder(w, f.Engines, states)
	}
	if !o.Kube.On { // else the API server has them
		f.Conditions = join(live, f.Conditions)
	}
	dropKnown(&f)
	if o.cert != "" {
		f.Files = append(f.Files, certificate(o.cert, o.key))
	}
	f.Now = time.Now()
	return f
}

func objectsOf(o options, w *objects.World, err error) *diagnosis.Objects {
	is := &diagnosis.Objects{From: cmp.Or(o.Dir, "the cluster"), Cluster: o.Kube.On}
	if err != nil {
		is.Err = strings.TrimPrefix(err.Error(), "read objects: ")
		return is
	}
	for _, n := range w.Objects {
		is.Count += n
	}
	is.Problems, is.Endpoints, is.Held = w.Problems, len(w.Engines), len(w.Pools) > 0
	for _, p := range w.Pools {
		is.Held = is.Held && p.HoldsWhileEmpty()
	}
	return is
}

// askEngines asks each engine for its models, and reads its clock.
func askEngines(ctx context.Context, w *objects.World, access engineclient.Access, f *diagnosis.Facts) {
	client := http.Client{Transport: access.Transport(time.Second), Timeout: timeout, CheckRedirect: engineclient.Stay}
	defer client.CloseIdleConnections()
	f.Engines = make([]diagnosis.Engine, len(w.Engines))
	clocks := make([]*diagnosis.Clock, len(w.Engines))
	turns := make(chan struct{}, together)
	var all sync.WaitGroup
	for i, e := range w.Engines {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			f.Engines[i], clocks[i] = askEngine(ctx, &client, access, e)
		})
	}
	all.Wait()
	for _, c := range clocks {
		if c != nil {
			f.Clocks = append(f.Clocks, *c)
		}
	}
}

func askEngine(ctx context.Context, client *http.Client, access engineclient.Access, e objects.Engine) (
	diagnosis.Engine, *diagnosis.Clock,
) {
	with := access.With(e.Token).Over(e.TLS, e.H2C)
	is := diagnosis.Engine{Address: e.Address, Kind: string(e.Kind), Token: with.Bearer() != "", TLS: with.Secure()}
	if len(engine.Pages(e.Kind)) == 0 { // it has no pages; a connection is all that can be tried
		conn, err := with.DialContext(ctx, "tcp", e.Address)
		if err == nil {
			_ = conn.Close()
			return is, nil
		}
		is.Outcome, is.Detail = outcomeOf(err)
		return is, nil
	}
	request, err := with.Request(ctx, http.MethodGet, e.HTTP(), e.Host, "/v1/models", nil)
	if err != nil {
		is.Outcome, is.Detail = diagnosis.Other, err.Error()
		return is, nil
	}
	response, err := client.Do(request)
	if err != nil {
		is.Outcome, is.Detail = outcomeOf(err)
		return is, nil
	}
	defer response.Body.Close()
	page, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	switch {
	case err != nil:
		is.Outcome, is.Detail = outcomeOf(err)
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden:
		is.Outcome, is.Detail = diagnosis.Denied, response.Status
	case response.StatusCode == http.StatusBadRequest && !is.TLS && strings.Contains(string(page), "HTTPS"):
		is.Outcome, is.Detail = diagnosis.BadTLS, response.Status
	case response.StatusCode != http.StatusOK:
		is.Outcome, is.Detail = diagnosis.Other, response.Status
	default:
		models, err := engine.ReadModels(page)
		if is.Models = len(models.Base) + len(models.Adapters); err != nil {
			is.Outcome, is.Detail = diagnosis.Other, "something else than a list of models"
		}
	}
	return is, clockOf(e.Address, response.Header)
}

// clockOf reads the clock of a program from the header Date of its answer; nil if there is none.
func clockOf(of string, h http.Header) *diagnosis.Clock {
	at, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return nil
	}
	return &diagnosis.Clock{Of: of, Ahead: at.Sub(time.Now().Truncate(time.Second))}
}

// outcomeOf classifies an error of a request.
func outcomeOf(err error) (diagnosis.Outcome, string) {
	var slow interface{ Timeout() bool }
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return diagnosis.Refused, err.Error()
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid), errors.As(err, &record), errors.As(err, &alert):
		return diagnosis.BadTLS, root(err)
	case errors.As(err, &slow) && slow.Timeout():
		return diagnosis.Silent, fmt.Sprintf("no answer within %v", timeout)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return diagnosis.Silent, root(err)
	}
	return diagnosis.Other, "an error: " + root(err)
}

// failed returns the outcome of an error.
func failed(err error) diagnosis.Outcome {
	is, _ := outcomeOf(err)
	return is
}

// root returns the text of an error without the request.
func root(err error) string {
	if of, ok := errors.AsType[interface {
		error
		Unwrap() error
		Timeout() bool
	}](err); ok && of.Unwrap() != nil {
		return of.Unwrap().Error()
	}
	return err.Error()
}

// page reads a page.
func page(ctx context.Context, url string) (code int, body []byte, h http.Header, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			// The listener's certificate is for its public name, not for the address that is asked.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // it gets no secret
		},
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxPage))
	return response.StatusCode, body, response.Header, err
}

var envoyVersion = regexp.MustCompile(`\d+\.\d+\.\d+`)

// envoy asks Envoy's admin port and its listener, and looks for an installed Envoy.
func envoy(ctx context.Context, o options) *diagnosis.Envoy {
	e := &diagnosis.Envoy{Admin: o.admin, Listen: o.listen, ListenFlag: "--listen", AdminsFlag: "--admin"}
	code, body, _, err := page(ctx, "http://"+o.admin+"/server_info")
	var info struct{ Version, State string }
	switch {
	case err != nil:
		e.AdminOutcome, e.AdminDetail = outcomeOf(err)
	case code != http.StatusOK || json.Unmarshal(body, &info) != nil || info.State == "":
		e.AdminIsAnother = true
	default:
		e.Version, e.State = cmp.Or(envoyVersion.FindString(info.Version), info.Version), info.State
		if code, dump, _, err := page(ctx, "http://"+o.admin+"/config_dump?resource=static_listeners"); err == nil && code == http.StatusOK {
			e.Forwarding = diagnosis.ReadForwarding(dump)
		}
	}
	e.Listener, e.ListenerDetail, e.ListenerIsAnother = listener(ctx, o.listen)
	if e.AdminOutcome != diagnosis.Refused {
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cache, err := find.DefaultCache()
	if err == nil {
		e.Found, err = find.Installed(ctx, cache)
	}
	if err != nil {
		e.NotFound = err.Error()
	}
	return e
}

// listener asks Envoy's listener for clients.
func listener(ctx context.Context, address string) (is diagnosis.Outcome, detail string, another bool) {
	code, body, h, err := page(ctx, "http://"+address+"/healthz")
	if err == nil && code == http.StatusBadRequest || err != nil && failed(err) == diagnosis.Other {
		if c, b, hs, over := page(ctx, "https://"+address+"/healthz"); over == nil {
			code, body, h, err = c, b, hs, nil
		}
	}
	if err != nil {
		is, detail = outcomeOf(err)
		return is, detail, false
	}
	ours := code == http.StatusOK && string(body) == "ok\n" || h.Get("Server") == "envoy"
	return diagnosis.Answered, fmt.Sprintf("it answers %d, server %q", code, h.Get("Server")), !ours
}

var buildInfo = regexp.MustCompile(`headgate_build_info\{[^}]*program="control"[^}]*version="([^"]*)"`)

var rejectedFiles = regexp.MustCompile(`(?m)^headgate_objects_rejected_files (\d+)$`)

// control asks control for its version, its clock, and the conditions of objects.
func control(ctx context.Context, o options, f *diagnosis.Facts) (*diagnosis.Control, []admin.Condition) {
	if o.Control == "" {
		return nil, nil
	}
	c := &diagnosis.Control{URL: o.Control, Cluster: o.Kube.On}
	code, body, h, err := page(ctx, o.Control+"/metrics")
	found := buildInfo.FindSubmatch(body)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		c.None = true
		return c, nil
	case err != nil:
		is, detail := outcomeOf(err)
		c.Hangs, c.Err = is == diagnosis.Silent, fmt.Sprintf("control at %s: %s", o.Control, detail)
		return c, nil
	case code != http.StatusOK || found == nil:
		c.Err = "another program than control listens at " + o.Control
		return c, nil
	}
	c.Version = string(found[1])
	if n := rejectedFiles.FindSubmatch(body); n != nil {
		c.Rejected, _ = strconv.Atoi(string(n[1]))
	}
	if clock := clockOf("control", h); clock != nil {
		f.Clocks = append(f.Clocks, *clock)
	}
	var live []admin.Condition
	// A control that does not lead has no conditions; asking for extprocs says so.
	if query.JSON(ctx, http.MethodGet, o.Control, "/conditions", nil, &live) != nil {
		live = nil
	}
	return c, live
}

// extproc asks all extprocs through control, or else the one on this machine. It adds the state of
// each endpoint to states. It returns nil if no URL is set.
func extproc(ctx context.Context, o options, c *diagnosis.Control, states map[string]conditions.Endpoint) *diagnosis.Extproc {
	at := o.Addresses
	if c != nil && (c.Err != "" || c.None) {
		at.Control = ""
	}
	if at.Control == "" && at.Extproc == "" {
		return nil
	}
	x := &diagnosis.Extproc{URL: at.Extproc}
	answers, err := at.Ask(ctx, admin.Endpoints, nil)
	if err != nil {
		nobody, apart := errors.As(err, new(query.Nobody)), errors.As(err, new(query.Unconnected))
		switch {
		case apart && (nobody || at.Extproc == ""):
			x.None, x.Unconnected = true, at.Control
		case nobody && at.Control == "":
			x.None = true
		default:
			x.Err = err.Error()
		}
		return x
	}
	if c != nil {
		if c.Apart = answers.Note(); errors.As(answers.Instead, new(query.Unconnected)) {
			c.Apart = fmt.Sprintf("no extproc is connected to the control at %s, although one answers at %s", at.Control, at.Extproc)
		}
	}
	for _, a := range answers.Extprocs {
		is := diagnosis.ExtprocAnswer{Name: a.Extproc, Version: a.Version, Err: a.Error}
		var r admin.EndpointsResult
		if a.Error == "" && json.Unmarshal(a.Result, &r) != nil {
			is.Err = "its answer cannot be read: it is of another version"
		}
		is.Endpoints, is.Omitted, is.ControlLost, is.Held = len(r.Endpoints), r.Omitted, r.ControlLost, held(r)
		for _, e := range r.Endpoints {
			if slices.Contains([]string{"healthy", "suspect", "migrating"}, e.State) {
				is.Serving++
			}
			states[e.Address] = conditions.Best(states[e.Address], stateOf(e))
			if e.State != "healthy" {
				why := cmp.Or(stateOf(e).Explain(), "unknown")
				is.Bad = append(is.Bad, fmt.Sprintf("%s is %s at extproc %s: %s", e.Address, e.State, a.Extproc, why))
			}
		}
		is.Rejected, is.RejectedFiles = r.Rejected, r.RejectedFiles
		for _, p := range r.Pools {
			if p.Waiting != "" {
				is.Fallbacks = append(is.Fallbacks, p.Name)
			}
		}
		x.Answers = append(x.Answers, is)
	}
	return x
}

// certificate reads a certificate and its key.
func certificate(file, key string) diagnosis.Certificate {
	c := diagnosis.Certificate{File: file, KeyFile: key}
	pair, err := tls.LoadX509KeyPair(file, key)
	if err != nil {
		c.Err = err.Error()
		return c
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		c.Err = err.Error()
		return c
	}
	c.NotBefore, c.NotAfter, c.Names = leaf.NotBefore, leaf.NotAfter, leaf.DNSNames
	for _, ip := range leaf.IPAddresses {
		c.Names = append(c.Names, ip.String())
	}
	return c
}
