package certificates_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

var (
	of           = schema.GroupResource{Resource: "secrets"}
	errForbidden = fmt.Errorf("%w; give the user u get on it", apierrors.NewForbidden(of, "cert", errors.New("no")))
	notFound     = apierrors.NewNotFound(of, "cert")
	errAway      = errors.New("connection refused")
	slow         = apierrors.NewTimeoutError("later", 1)

	a = objects.Name{Namespace: "ns", Name: "a"}
	b = objects.Name{Namespace: "ns", Name: "b"}
)

// secrets contains the Secrets of an API server, and implements certificates.Reader.
type secrets struct {
	user kube.User
	data map[objects.Name]map[string][]byte
	err  error
	read []objects.Name // names whose Secrets Watch.Name read immediately
}

func (s *secrets) Add(u kube.User) { s.user = u }

func (s *secrets) Read(_ context.Context, names []objects.Name) {
	s.read = append(s.read, names...)
	s.round(names)
}

// round reads some Secrets, as the periodic refresh does.
func (s *secrets) round(names []objects.Name) {
	for _, name := range names {
		switch data, there := s.data[name]; {
		case s.err != nil:
			s.user.Take(name, nil, s.err)
		case !there:
			s.user.Take(name, nil, notFound)
		default:
			s.user.Take(name, data, nil)
		}
	}
}

func dataOf(chain, key string) map[string][]byte {
	return map[string][]byte{"tls.crt": []byte(chain), "tls.key": []byte(key)}
}

// watching returns a Watch and its log.
func watching(t *testing.T) (*secrets, *certificates.Watch, *strings.Builder) {
	s, log := &secrets{data: make(map[objects.Name]map[string][]byte)}, new(strings.Builder)
	w := certificates.New(s, certificates.KeyPairs, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() {
		if strings.Contains(log.String(), "BEGIN") {
			t.Errorf("the log holds PEM:\n%s", log)
		}
	})
	return s, w, log
}

func changed(w *certificates.Watch) bool {
	select {
	case <-w.Changed():
		return true
	default:
		return false
	}
}

// wants checks the chain and the fault of a result.
func wants(t *testing.T, what string, is plan.Certificate, chain, fault string) {
	t.Helper()
	if string(is.Chain) != chain || (is.Key == nil) != (chain == "") || (is.Fault == "") != (fault == "") ||
		!strings.Contains(is.Fault, fault) {
		t.Errorf("%s: chain %q with fault %q, want %q with %q", what, is.Chain, is.Fault, chain, fault)
	}
}

func TestResultsFollowTheSecret(t *testing.T) {
	s, w, log := watching(t)
	chain, key := pair(t, time.Now())
	chain2, key2 := pair(t, time.Now())
	is := func() plan.Certificate { return w.Name(t.Context(), []objects.Name{a})[a] }
	wants(t, "without it", is(), "", "it does not exist: make it with kubectl create secret tls a --namespace ns --cert FILE --key FILE")
	for _, step := range []struct {
		what  string
		data  map[string][]byte
		err   error
		chain string
		fault string
		same  bool
	}{
		{what: "made", data: dataOf(chain, key), chain: chain},
		{what: "read again", data: dataOf(chain, key), chain: chain, same: true},
		{what: "beside an API server that is away", err: errAway, chain: chain, same: true},
		{what: "beside one that has no time", err: slow, chain: chain, same: true},
		{what: "replaced", data: dataOf(chain2, key2), chain: chain2},
		{what: "with the key of another", data: dataOf(chain, key2), chain: chain2, fault: "tls.key does not match the first certificate"},
		{
			what: "with that, beside an API server that is away", err: errAway, chain: chain2,
			fault: "tls.key does not match the first certificate", same: true,
		},
		{what: "with no key", data: dataOf(chain2, ""), chain: chain2, fault: "tls.key is missing"},
		{what: "mended", data: dataOf(chain, key), chain: chain},
		{
			what: "without the right", err: errForbidden, chain: chain,
			fault: `control may not read it: secrets "cert" is forbidden: no; give the user u get on it`,
		},
		{what: "with the right", data: dataOf(chain, key), chain: chain},
		{what: "deleted", fault: "it does not exist"},
		{what: "deleted, beside an API server that is away", err: errAway, fault: "it does not exist", same: true},
		{what: "made anew", data: dataOf(chain2, key2), chain: chain2},
	} {
		delete(s.data, a)
		if s.err = step.err; step.data != nil {
			s.data[a] = step.data
		}
		s.round([]objects.Name{a})
		if changed(w) == step.same {
			t.Errorf("%s: change reported: %v", step.what, !step.same)
		}
		wants(t, step.what, is(), step.chain, step.fault)
		if changed(w) {
			t.Errorf("%s: naming the Secret is reported as a change", step.what)
		}
	}
	if !slices.Equal(s.read, []objects.Name{a}) {
		t.Errorf("read at once: %v", s.read)
	}
	for words, want := range map[string]int{"cannot use certificates\"": 2, "using the last valid ones": 3, "read certificates": 5} {
		if got := strings.Count(log.String(), words); got != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", words, got, want, log)
		}
	}
}

// Name returns the content of a Secret that it names for the first time, and Changed does not
// signal that content.
func TestNamedSecretsAreReadAndOthersDropped(t *testing.T) {
	s, w, _ := watching(t)
	chain, key := pair(t, time.Now())
	s.data[a], s.data[b] = dataOf(chain, key), dataOf(chain, key)
	names := func(all ...objects.Name) map[objects.Name]plan.Certificate {
		t.Helper()
		s.read = nil
		known := w.Name(t.Context(), all)
		named := s.user.Named()
		slices.SortFunc(named, objects.Name.Compare)
		if !slices.Equal(named, all) || len(known) != len(all) {
			t.Errorf("watched: %v, of which %d are known, want %v", named, len(known), all)
		}
		if changed(w) {
			t.Errorf("naming %v is reported as a change", all)
		}
		return known
	}
	before := names(a)
	chain2, key2 := pair(t, time.Now())
	s.data[a] = dataOf(chain2, key2)
	if s.round([]objects.Name{a}); !changed(w) {
		t.Error("a new certificate is not reported")
	}
	wants(t, "when it was named", before[a], chain, "")
	wants(t, "named with another", names(a, b)[b], chain, "")
	if !slices.Equal(s.read, []objects.Name{b}) {
		t.Errorf("read at once: %v", s.read)
	}
	names(b)
	s.data[a] = nil
	s.round([]objects.Name{a})
	if changed(w) {
		t.Error("a Secret that is no longer named is reported")
	}
	names(b)
	s.err = errAway
	wants(t, "named again, beside an API server that is away", names(a, b)[a], "",
		"control could not read it yet: the API server does not answer")
	s.err = nil
	s.data[a] = dataOf(chain, key)
	if s.round([]objects.Name{a}); !changed(w) {
		t.Error("a Secret that could not be read at once is not reported later")
	}
	wants(t, "read later", names(a, b)[a], chain, "")
}

// When a served certificate expires, the Watch reports a warning as a change, although the Secret
// has not changed.
func TestExpiryIsReportedAsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, log := watching(t)
		chain, key := pair(t, time.Now())
		s.data[a] = dataOf(chain, key)
		if is := w.Name(t.Context(), []objects.Name{a})[a]; is.Warning != "" || is.Fault != "" {
			t.Errorf("before expiry: warning %q, fault %q", is.Warning, is.Fault)
		}
		for _, late := range []bool{false, true, false} {
			if s.round([]objects.Name{a}); changed(w) != late {
				t.Errorf("at %v: change reported: %v", time.Now(), !late)
			}
			time.Sleep(2 * time.Hour) // on synctest's fake clock
		}
		is := w.Name(t.Context(), []objects.Name{a})[a]
		wants(t, "expired", is, chain, "")
		if is.Warning != "certificate 1 of tls.crt expired at 2000-01-01 01:00 UTC, and clients reject it: replace it" ||
			strings.Count(log.String(), "clients may reject") != 1 {
			t.Errorf("the warning is %q, and the log is\n%s", is.Warning, log)
		}
	})
}

func TestSecretsOfAFolderHaveNamespaces(t *testing.T) {
	chain, key := pair(t, now)
	chain2, key2 := pair(t, now)
	named := func(namespace, name string) objects.Name { return objects.Name{Namespace: namespace, Name: name} }
	n := &objects.Network{KeyPairs: []objects.KeyPair{
		{Name: named("ns", "bad"), Certificate: []byte(chain), Key: objects.PrivateKey(key2)},
		{Name: named("ns", "cert"), Certificate: []byte(chain), Key: objects.PrivateKey(key)},
		{Name: named("other", "alone"), Certificate: []byte(chain), Key: objects.PrivateKey(key)},
		{Name: named("other", "cert"), Certificate: []byte(chain2), Key: objects.PrivateKey(key2)},
	}}
	at := func(o objects.Object) string {
		if o.Kind != "Secret" || o.Name.Namespace != "ns" {
			return ""
		}
		return o.Name.Name + ".yaml:3"
	}
	names := []objects.Name{named("ns", "cert"), named("other", "cert"), named("ns", "alone"), named("ns", "bad")}
	known := certificates.OfFolder(n, at, names, nil, now)
	wants(t, "of its namespace", known[names[0]], chain, "")
	wants(t, "of another namespace", known[names[1]], chain2, "")
	wants(t, "in another namespace only", known[names[2]], "",
		"no file in the folder contains it: create one with the output of kubectl create secret tls alone --namespace ns --cert FILE --key FILE --dry-run=client -o yaml")
	wants(t, "at fault", known[names[3]], "", "the first certificate in tls.crt (bad.yaml:3)")
	// While a Secret is invalid, its last certificate is kept. A deleted Secret deletes the
	// certificate.
	was := map[objects.Name]plan.Certificate{names[3]: known[names[1]], names[2]: known[names[1]]}
	again := certificates.OfFolder(n, at, names, was, now)
	wants(t, "at fault now", again[names[3]], chain2, "the first certificate in tls.crt (bad.yaml:3)")
	wants(t, "gone", again[names[2]], "", "no file in the folder contains it")
	if len(known) != len(names) {
		t.Errorf("%d Secrets are named, but %d are known", len(names), len(known))
	}
	if late := certificates.OfFolder(n, at, names[:1], nil, now.Add(2*time.Hour))[names[0]]; !strings.Contains(late.Warning, "expired") {
		t.Errorf("after expiry the warning is %q", late.Warning)
	}
}

// The old list of authorities does not replace an invalid one, since it may contain an authority
// that was removed.
func TestInvalidAuthoritiesTrustNoOne(t *testing.T) {
	chain, _ := pair(t, now)
	name := objects.Name{Namespace: "ns", Name: "ca"}
	is := func(text string, was map[objects.Name]plan.Certificate) map[objects.Name]plan.Certificate {
		n := &objects.Network{Authorities: []objects.Authorities{{Name: name, Certificates: []byte(text)}}}
		return certificates.AuthoritiesOfFolder(n, func(objects.Object) string { return "" }, []objects.Name{name}, was, now)
	}
	good := is(chain, nil)
	if c := good[name]; c.Fault != "" || len(c.Chain) == 0 {
		t.Fatalf("the valid ConfigMap has %+v", c)
	}
	wants(t, "emptied", is("", good)[name], "", "ca.crt is missing")
}
