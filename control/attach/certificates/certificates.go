// Package certificates reads the Secrets that TLS listeners name, and the ConfigMaps with
// authorities, from an API server by name or from a folder. It rejects what Envoy would reject,
// with a readable reason.
package certificates

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// OfFolder checks the named Secrets of a folder at the time now. At returns where an object is
// written, empty if unknown. Was has the earlier results: while the content of a Secret is invalid,
// its last valid certificate is kept.
func OfFolder(n *objects.Network, at func(objects.Object) string, names []objects.Name, was map[objects.Name]plan.Certificate,
	now time.Time,
) map[objects.Name]plan.Certificate {
	pairs := make(map[objects.Name]*objects.KeyPair, len(n.KeyPairs))
	for i := range n.KeyPairs {
		pairs[n.KeyPairs[i].Name] = &n.KeyPairs[i]
	}
	return ofFolder(KeyPairs, names, at, was, now, func(name objects.Name) (map[string][]byte, bool) {
		pair := pairs[name]
		if pair == nil {
			return nil, false
		}
		return map[string][]byte{objects.CertificateKey: pair.Certificate, objects.PrivateKeyKey: pair.Key}, true
	})
}

// AuthoritiesOfFolder is [OfFolder] for ConfigMaps with authorities.
func AuthoritiesOfFolder(n *objects.Network, at func(objects.Object) string, names []objects.Name, was map[objects.Name]plan.Certificate,
	now time.Time,
) map[objects.Name]plan.Certificate {
	maps := make(map[objects.Name][]byte, len(n.Authorities))
	for i := range n.Authorities {
		maps[n.Authorities[i].Name] = n.Authorities[i].Certificates
	}
	return ofFolder(Authorities, names, at, was, now, func(name objects.Name) (map[string][]byte, bool) {
		text, there := maps[name]
		return map[string][]byte{objects.AuthorityKey: text}, there
	})
}

func ofFolder(k Kind, names []objects.Name, at func(objects.Object) string, was map[objects.Name]plan.Certificate, now time.Time,
	find func(objects.Name) (map[string][]byte, bool),
) map[objects.Name]plan.Certificate {
	all := make(map[objects.Name]plan.Certificate, len(names))
	for _, name := range names {
		data, there := find(name)
		if !there {
			all[name] = plan.Certificate{Fault: "no file in the folder contains it: create one with the output of " + k.create(name) +
				" --dry-run=client -o yaml"}
			continue
		}
		c := k.after(was[name], data, now)
		if where := at(objects.Object{Kind: k.name, Name: name}); c.Fault != "" && where != "" {
			c.Fault += " (" + where + ")"
		}
		all[name] = c
	}
	return all
}

// Kind is the kind of object that certificates are read from: [KeyPairs] or [Authorities].
type Kind struct {
	name    string // of the kind
	command string // subcommand of kubectl create that makes one, without a name
	files   string // arguments of that command
	keeps   bool   // keep the last valid content while the current one is invalid
	check   func(data map[string][]byte, now time.Time) plan.Certificate
}

var (
	// KeyPairs are Secrets with a certificate and its key.
	KeyPairs = Kind{
		objects.SecretKind, "secret tls", "--cert FILE --key FILE", true,
		func(data map[string][]byte, now time.Time) plan.Certificate {
			return Check(data[objects.CertificateKey], data[objects.PrivateKeyKey], now)
		},
	}
	// Authorities are ConfigMaps with the certificates of authorities. An invalid one trusts
	// nobody: Gateway API rejects a policy that has no other (NoValidCACertificate), and the old
	// content may have an authority that was removed on purpose.
	Authorities = Kind{
		objects.ConfigMapKind, "configmap", "--from-file " + objects.AuthorityKey + "=FILE", false,
		func(data map[string][]byte, _ time.Time) plan.Certificate {
			return CheckAuthorities(data[objects.AuthorityKey])
		},
	}
)

// create returns the kubectl command that creates an object of this kind.
func (k Kind) create(name objects.Name) string {
	return fmt.Sprintf("kubectl create %s %s --namespace %s %s", k.command, name.Name, name.Namespace, k.files)
}

// after returns the result for data that was just read, given the earlier result.
func (k Kind) after(was plan.Certificate, data map[string][]byte, now time.Time) plan.Certificate {
	is := k.check(data, now)
	if is.Fault != "" && k.keeps {
		is.Chain, is.Key, is.Warning = was.Chain, was.Key, was.Warning
	}
	return is
}

// Reader reads Secrets or ConfigMaps by name: [kube.ByName].
type Reader interface {
	Add(u kube.User)
	Read(ctx context.Context, names []objects.Name)
}

// Watch follows the named Secrets or ConfigMaps of an API server. Make one with [New]. Name is for
// one goroutine at a time; the rest is safe for concurrent use.
//
// The last valid certificate is kept while its Secret cannot be read, while its content is invalid,
// and while Headgate has no right to read it, which an API server also reports while it starts. The
// last two set the certificate's Fault. Deleting a Secret deletes its certificate. A control that
// starts has no earlier certificates.
type Watch struct {
	reader  Reader
	kind    Kind
	log     *slog.Logger
	changed chan struct{} // capacity 1

	mu      sync.Mutex // guards what follows
	known   map[objects.Name]plan.Certificate
	awaited []objects.Name // Name reports their content, so it is not also a change
}

// New returns a Watch of a kind that names nothing yet.
func New(reader Reader, k Kind, log *slog.Logger) *Watch {
	w := &Watch{reader: reader, kind: k, log: log, changed: make(chan struct{}, 1), known: make(map[objects.Name]plan.Certificate)}
	reader.Add(w)
	return w
}

// unread is the Fault of a Secret that was not read yet.
const unread = "control could not read it yet: the API server does not answer; control retries every few seconds"

// Name sets the names to follow and returns the result of each. It waits up to a second for names
// that are new. The caller must not change the result.
func (w *Watch) Name(ctx context.Context, names []objects.Name) map[objects.Name]plan.Certificate {
	w.mu.Lock()
	known := make(map[objects.Name]plan.Certificate, len(names))
	var fresh []objects.Name
	for _, name := range names {
		is, named := w.known[name]
		if !named {
			is, fresh = plan.Certificate{Fault: unread}, append(fresh, name)
		}
		known[name] = is
	}
	w.known, w.awaited = known, fresh
	w.mu.Unlock()
	if len(fresh) > 0 {
		w.reader.Read(ctx, fresh)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaited = nil
	return maps.Clone(w.known)
}

// Changed receives when a result has changed since Name returned; the caller then calls Name again.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Named implements [kube.User].
func (w *Watch) Named() []objects.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.known))
}

// Take implements [kube.User].
func (w *Watch) Take(name objects.Name, data map[string][]byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, named := w.known[name]
	if !named {
		return
	}
	is := w.kind.next(name, was, data, err, time.Now())
	if reflect.DeepEqual(is, was) {
		return
	}
	w.known[name] = is
	w.logChange(name, is)
	if slices.Contains(w.awaited, name) {
		return
	}
	select {
	case w.changed <- struct{}{}:
	default: // a change is pending already
	}
}

func (w *Watch) logChange(name objects.Name, is plan.Certificate) {
	log := w.log.With(strings.ToLower(w.kind.name), name.String())
	switch {
	case is.Fault != "" && len(is.Chain) > 0:
		log.Warn("cannot use certificates; using the last valid ones", "fault", is.Fault)
	case is.Fault != "":
		log.Warn("cannot use certificates", "fault", is.Fault)
	case is.Warning != "":
		log.Warn("read certificates that clients may reject", "warning", is.Warning)
	default:
		log.Info("read certificates")
	}
}

// next returns the result for data that was just read, or for an error, given the earlier result.
func (k Kind) next(name objects.Name, was plan.Certificate, data map[string][]byte, err error, now time.Time) plan.Certificate {
	switch {
	case apierrors.IsNotFound(err):
		return plan.Certificate{Fault: "it does not exist: make it with " + k.create(name)}
	case apierrors.IsForbidden(err):
		was.Fault = fmt.Sprintf("control may not read it: %v", err)
		return was
	case err != nil:
		return was
	}
	return k.after(was, data, now)
}
