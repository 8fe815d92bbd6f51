// Package certificates knows what is in the Secrets that listeners over TLS name, and in the ConfigMaps with authorities: those of an API
// server, each read by its name, or those of a folder. What an Envoy would refuse it refuses before, and says why in words for people.
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

// OfFolder returns what is known of the Secrets that are named, which are those of a folder, at the time now. At says where an object is
// written, empty if nobody knows. Was is what was known before: what is served with stays as it was while its Secret's content is at fault.
func OfFolder(n *objects.Network, at func(objects.Object) string, names []objects.Name, was map[objects.Name]plan.Certificate, now time.Time) map[objects.Name]plan.Certificate {
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
func AuthoritiesOfFolder(n *objects.Network, at func(objects.Object) string, names []objects.Name, was map[objects.Name]plan.Certificate, now time.Time) map[objects.Name]plan.Certificate {
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
			all[name] = plan.Certificate{Fault: "no file of the folder has it: write what " + k.create(name) + " --dry-run=client -o yaml prints into one"}
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

// Kind is what certificates are read from: [KeyPairs] or [Authorities].
type Kind struct {
	name    string // of the kind
	command string // that makes one, without its name
	files   string // of that command
	keeps   bool   // what was good last, while the content is at fault
	check   func(data map[string][]byte, now time.Time) plan.Certificate
}

var (
	// KeyPairs are Secrets with a certificate and its key.
	KeyPairs = Kind{objects.SecretKind, "secret tls", "--cert FILE --key FILE", true, func(data map[string][]byte, now time.Time) plan.Certificate {
		return Check(data[objects.CertificateKey], data[objects.PrivateKeyKey], now)
	}}
	// Authorities are ConfigMaps with the certificates of those who sign others'. One whose content is at fault vouches for nobody: a
	// policy that has no other is not accepted (BackendTLSPolicy, NoValidCACertificate), and to go on would be to trust whom it took out.
	Authorities = Kind{objects.ConfigMapKind, "configmap", "--from-file " + objects.AuthorityKey + "=FILE", false, func(data map[string][]byte, _ time.Time) plan.Certificate {
		return CheckAuthorities(data[objects.AuthorityKey])
	}}
)

// create is the command that makes one of certificates.
func (k Kind) create(name objects.Name) string {
	return fmt.Sprintf("kubectl create %s %s --namespace %s %s", k.command, name.Name, name.Namespace, k.files)
}

// after is what is known of what has just been read, and before that was known as it was.
func (k Kind) after(was plan.Certificate, data map[string][]byte, now time.Time) plan.Certificate {
	is := k.check(data, now)
	if is.Fault != "" && k.keeps {
		is.Chain, is.Key, is.Warning = was.Chain, was.Key, was.Warning
	}
	return is
}

// Reader reads Secrets or ConfigMaps by their names: [kube.ByName].
type Reader interface {
	Add(u kube.User)
	Read(ctx context.Context, names []objects.Name)
}

// Watch knows what is in the Secrets, or in the ConfigMaps, of an API server that are named, and is told when that changes. Make one with [New]. Its Name is for
// one goroutine at a time; else it is safe for concurrent use.
//
// What is served with stays as it was while its Secret cannot be read, while the Secret's content is at fault, and while Headgate has no
// right to read it, which API servers say, too, that have just started; the last two are Faults of the certificate all the same. A Secret
// that is deleted takes its certificate with it: so people take a key out of use. A control that starts knows nothing of what was good
// before.
type Watch struct {
	reader  Reader
	kind    Kind
	log     *slog.Logger
	changed chan struct{} // capacity 1

	mu      sync.Mutex // guards what follows
	known   map[objects.Name]plan.Certificate
	awaited []objects.Name // their content is told by Name, and not as a change
}

// New returns a Watch of a kind, of which none is named yet.
func New(reader Reader, k Kind, log *slog.Logger) *Watch {
	w := &Watch{reader: reader, kind: k, log: log, changed: make(chan struct{}, 1), known: make(map[objects.Name]plan.Certificate)}
	reader.Add(w)
	return w
}

// unread is the Fault of a Secret of which nothing is known.
const unread = "it was not read yet, for the API server does not answer: it is asked again every few seconds"

// Name says which Secrets are named from now on, and returns what is known of each: it waits until those that were not named before have
// been read, or for a second. The caller does not change what it gets.
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

// Changed receives when what is known of a Secret has changed since Name returned: the caller calls Name again.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Named is [kube.User]'s.
func (w *Watch) Named() []objects.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.known))
}

// Take is [kube.User]'s.
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
	w.tell(name, is)
	if slices.Contains(w.awaited, name) {
		return
	}
	select {
	case w.changed <- struct{}{}:
	default: // it is to be called already
	}
}

func (w *Watch) tell(name objects.Name, is plan.Certificate) {
	log := w.log.With(strings.ToLower(w.kind.name), name.String())
	switch {
	case is.Fault != "" && len(is.Chain) > 0:
		log.Warn("cannot use certificates; going on with the last good ones", "fault", is.Fault)
	case is.Fault != "":
		log.Warn("cannot use certificates; nothing is served with them", "fault", is.Fault)
	case is.Warning != "":
		log.Warn("read certificates that clients may refuse", "warning", is.Warning)
	default:
		log.Info("read certificates")
	}
}

// next is what is known of one when it has just been read, or why it could not be, and before that was known as it was.
func (k Kind) next(name objects.Name, was plan.Certificate, data map[string][]byte, err error, now time.Time) plan.Certificate {
	switch {
	case apierrors.IsNotFound(err):
		return plan.Certificate{Fault: "it does not exist: make it with " + k.create(name)}
	case apierrors.IsForbidden(err):
		was.Fault = fmt.Sprintf("it may not be read: %v", err)
		return was
	case err != nil:
		return was
	}
	return k.after(was, data, now)
}
