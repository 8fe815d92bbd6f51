// Package certificates reads the Secrets that TLS listeners name, and ConfigMaps with the
// certificates of authorities. It reads them from a folder, or by name from an API server. It
// rejects what Envoy would reject, with a readable reason.
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

// OfFolder checks the named Secrets of a folder at the time now. The function at returns the file
// and line of an object, empty if unknown. The map was contains the earlier results: while a Secret
// is invalid, OfFolder keeps its last valid certificate.
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

// AuthoritiesOfFolder is like [OfFolder], for ConfigMaps with the certificates of authorities.
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

// Kind is a kind of object that contains certificates: [KeyPairs] or [Authorities].
type Kind struct {
	name    string // Secret or ConfigMap
	command string // subcommand of kubectl create that makes such an object
	files   string // arguments of that subcommand after the object's name
	keeps   bool   // whether to keep the last valid content while the new content is invalid
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
	// Authorities are ConfigMaps with the certificates of authorities. While a ConfigMap is
	// invalid, no certificate is trusted: Gateway API rejects a policy without a valid authority
	// (NoValidCACertificate), and the old content may contain an authority that was removed on
	// purpose.
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

// after checks data that was just read, and returns the result. The argument was is the earlier
// result, whose content is kept if the data is invalid and the Kind keeps it.
func (k Kind) after(was plan.Certificate, data map[string][]byte, now time.Time) plan.Certificate {
	is := k.check(data, now)
	if is.Fault != "" && k.keeps {
		is.Chain, is.Key, is.Warning = was.Chain, was.Key, was.Warning
	}
	return is
}

// Reader reads Secrets or ConfigMaps by name. [kube.ByName] implements it.
type Reader interface {
	Add(u kube.User)
	Read(ctx context.Context, names []objects.Name)
}

// Watch follows the named Secrets or ConfigMaps of an API server. Make one with [New]. Only one
// goroutine at a time may call Name. The other methods are safe for concurrent use.
//
// A Watch keeps the last valid certificate of a Secret while the API server cannot be reached,
// while the Secret is invalid, and while Headgate may not read it, which a starting API server also
// reports. In the last two cases it sets the certificate's Fault. If a Secret is deleted, so is its
// certificate. Certificates are not kept over a restart of control.
type Watch struct {
	reader  Reader
	kind    Kind
	log     *slog.Logger
	changed chan struct{} // signals that a result has changed; capacity 1

	mu      sync.Mutex // guards the fields below
	known   map[objects.Name]plan.Certificate
	awaited []objects.Name // Name returns their results, so Changed does not signal them
}

// New returns a Watch of objects of a kind. It follows none until Name is called.
func New(reader Reader, k Kind, log *slog.Logger) *Watch {
	w := &Watch{reader: reader, kind: k, log: log, changed: make(chan struct{}, 1), known: make(map[objects.Name]plan.Certificate)}
	reader.Add(w)
	return w
}

// unread is the Fault of a Secret or ConfigMap that could not be read yet.
const unread = "control could not read it yet: the API server does not answer; control retries every few seconds"

// Name sets the names to follow, and returns the result of each. It waits up to a second for names
// that are new. The caller must not change the certificates.
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

// Changed signals that a result has changed since Name returned. The caller then calls Name again.
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

// next returns the result for an object after a read, which returned data or err. For some errors
// it keeps the content of the earlier result.
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
