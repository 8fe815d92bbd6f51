package place

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// SetWorld applies new objects: their endpoints and their models. Call it only after Run has called
// begun.
func (p *Placer) SetWorld(w *objects.World) {
	p.update(func(now time.Time) []decide.Action {
		if p.running.Err() != nil {
			return nil
		}
		was := p.world
		p.world, p.observed.changed = w, true
		if p.started.IsZero() {
			p.started = now
			p.wake = now // so that updateLocked wakes Run
		}
		p.setPools(w, was)
		p.setEndpoints(w)
		p.setPods(now)
		p.setCatalogue(w, was)
		p.setVModels(w, now)
		p.restore(now)
		return nil
	})
}

// setPools applies the placement settings of pools. was is the World before. The caller holds mu.
func (p *Placer) setPools(w, was *objects.World) {
	for name := range was.Pools {
		if w.Pools[name] == nil {
			p.state.SetPool(name, decide.Pool{})
			p.state.SetFits(name, decide.Fits{})
		}
	}
	for name, pool := range w.Pools {
		p.state.SetPool(name, placementOf(pool.Settings))
		p.state.SetFits(name, fitsOf(pool.Settings, pool.Endpoints))
	}
}

// durationOf returns the value of an optional duration; 0 if it is not set.
func durationOf(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}

// setEndpoints opens new endpoints and closes endpoints that were removed or replaced. The deletion
// of a pod is final: if an endpoint is no longer terminating, a new pod has its address, and the
// new engine has none of the old pod's models. The caller holds mu.
func (p *Placer) setEndpoints(w *objects.World) {
	declared := make(map[string]objects.Engine, len(w.Engines))
	for _, e := range w.Engines {
		declared[e.Address] = e
	}
	for address, s := range p.endpoints {
		e, ok := declared[address]
		same := ok && s.Kind == e.Kind && s.Management == e.Management && s.Host == e.Host && s.Token == e.Token && s.TLS == e.TLS &&
			s.H2C == e.H2C && s.HTTP == e.HTTP() && s.GRPC == e.GRPC()
		replaced := s.terminating && !e.Terminating
		if s.terminating = e.Terminating; same && !replaced && s.Incarnation == e.Incarnation {
			if is := (adapters{e.MaxAdapters, e.HostAdapters}); s.adapters != is || s.room != e.Room {
				s.adapters, s.room = is, e.Room
				s.requestScrape()
			}
			continue
		}
		s.stop()
		delete(p.endpoints, address)
		if !ok || replaced {
			p.Publisher.SetMethods(address, "")
			p.state.RemoveEndpoint(address)
		}
		if replaced {
			forgetDrain(p, address)
			p.forgetRuntime(address)
		}
	}
	for address, e := range declared {
		p.state.SetEndpoint(address, e.Pools)
		p.state.Terminating(objectsSource, address, e.Terminating, e.Migrates)
		if until, is := p.drains[address]; is {
			p.state.Terminating(drainSource, address, true, until)
		}
		if p.endpoints[address] == nil {
			p.open(e)
		}
	}
	p.forgetRuntimes()
	for address := range p.drains { // an endpoint may have been removed while no control ran
		if p.endpoints[address] == nil {
			forgetDrain(p, address)
		}
	}
}

// forgetRuntimes deletes the records of endpoints that do not exist, including records of an
// earlier process. A runtime may change while its endpoint does not exist, so it is made ready
// again if the endpoint returns. The caller holds mu.
func (p *Placer) forgetRuntimes() {
	for address := range p.records {
		if p.endpoints[address] == nil {
			p.forgetRuntime(address)
		}
	}
}

func (p *Placer) forgetRuntime(address string) {
	delete(p.records, address)
	p.Memory.DeleteRuntime(address)
}

// objectsSource is the name of the Kubernetes objects as a source of pod deletions. The other
// sources are extprocs, whose names are never empty.
const objectsSource = ""

// setCatalogue sets the catalogue to the declared models of the objects plus the registered models.
// was is the World before. The caller holds mu.
func (p *Placer) setCatalogue(w, was *objects.World) {
	declared := make(map[decide.Key]*objects.Entry, len(w.Catalogue))
	for i := range w.Catalogue {
		e := &w.Catalogue[i]
		declared[e.ModelKey] = e
		if known := p.declared[e.ModelKey]; known == nil || *known != *e {
			p.state.SetModel(*e, p.used[e.ModelKey])
			p.unsaved[e.ModelKey] = true
		}
		if (w.Pools[e.Pool] == nil) != (was.Pools[e.Pool] == nil) {
			p.unsaved[e.ModelKey] = true
		}
	}
	for key := range p.declared {
		if _, ok := declared[key]; ok {
			continue
		}
		if m := p.registered[key]; m != nil {
			p.state.SetModel(p.entryOf(m), time.Time{})
			continue
		}
		p.state.RemoveModel(key)
	}
	p.declared = declared
	for key, m := range p.registered {
		if _, ok := declared[key]; !ok && m.Spec.Source == "" { // its source comes from the pool's settings
			p.state.SetModel(p.entryOf(m), time.Time{})
		}
	}
}

// Register adds a model to the catalogue, and returns once it is stored. fresh reports whether the
// model is new. A registered model may be registered again with the same attributes; with other
// attributes the error is [decide.ErrExists]. used is the model's last use.
func (p *Placer) Register(m *v1alpha1.Model, used time.Time) (fresh bool, err error) {
	p.mu.Lock()
	fresh, written, err := p.registerLocked(m, used)
	p.mu.Unlock()
	if err != nil {
		return false, err
	}
	return fresh, written()
}

// registerLocked is Register without waiting for storage; call written to wait. The caller holds
// mu.
func (p *Placer) registerLocked(m *v1alpha1.Model, used time.Time) (fresh bool, written func() error, err error) {
	key := objects.EntryOf(m).ModelKey
	if known, ok := p.declared[key]; ok {
		if d := p.entryOf(m); known.Type != d.Type || known.Source != d.Source || known.Info != d.Info {
			return false, nil, decide.ErrExists
		}
		return false, func() error { return nil }, nil
	}
	if known := p.registered[key]; known != nil {
		if known.Spec.Type != m.Spec.Type || known.Spec.Source != m.Spec.Source || known.Spec.Key != m.Spec.Key {
			return false, nil, decide.ErrExists
		}
	} else {
		fresh = true
		p.registered[key] = m
		p.updateLocked(func(time.Time) []decide.Action { p.state.SetModel(p.entryOf(m), used); return nil })
		p.Publisher.Publish(decide.Change{Registered: map[decide.Key]bool{key: true}})
		p.markLoose(key)
	}
	// Every registration waits for storage and followers, even of a known model: its first
	// registration may still be in progress.
	put := p.Memory.PutModel(m)
	return fresh, func() error {
		if err := put(); err != nil {
			return err
		}
		p.Publisher.AwaitRegistered(key)
		return nil
	}, nil
}

// Unregister removes a registered model from the catalogue, and returns once the removal is stored.
// The model's copies are unloaded later. Removing an unknown model succeeds. The error is
// [decide.ErrDeclared] for a model that objects declare, and [decide.ErrReferred] for a model that
// receives requests of VModels. After any other error the model is still registered.
func (p *Placer) Unregister(key decide.Key) error {
	p.mu.Lock()
	m := p.registered[key]
	if m == nil {
		defer p.mu.Unlock()
		if _, ok := p.declared[key]; ok {
			return decide.ErrDeclared
		}
		return nil
	}
	if by := p.referents(key); by != "" {
		defer p.mu.Unlock()
		return fmt.Errorf("%w: %s", decide.ErrReferred, by)
	}
	delete(p.registered, key)
	if d, ok := p.declared[key]; !ok || d.Object == (objects.Name{Namespace: m.Namespace, Name: m.Name}) {
		delete(p.declared, key) // the object that stores the registration, also deleted
		p.updateLocked(func(time.Time) []decide.Action { p.state.RemoveModel(key); return nil })
	}
	p.Publisher.Publish(decide.Change{Registered: map[decide.Key]bool{key: false}})
	written := p.Memory.DeleteModel(m)
	p.mu.Unlock()
	err := written()
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.registered[key] == nil {
		p.registered[key] = m
		p.markLoose(key)
		p.updateLocked(func(time.Time) []decide.Action { p.state.SetModel(p.entryOf(m), time.Time{}); return nil })
		p.Publisher.Publish(decide.Change{Registered: map[decide.Key]bool{key: true}})
	}
	return err
}

// Pool returns the pool of the models that clients register.
func (p *Placer) Pool() (objects.Name, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.RegisteredPool != (objects.Name{}) {
		if p.world.Pools[p.RegisteredPool] == nil {
			return objects.Name{}, fmt.Errorf("control's --mesh-pool names InferencePool %s, which does not exist", p.RegisteredPool)
		}
		return p.RegisteredPool, nil
	}
	found := poolsWith(p.world, func(e objects.Endpoint) bool { return e.Management != "" && !e.Kind.Adapters() })
	what := "model runtimes"
	if len(found) == 0 {
		found = poolsWith(p.world, func(e objects.Endpoint) bool { return e.Kind.Repository() })
		what += " or engines with a model repository"
	}
	if len(found) != 1 {
		return objects.Name{}, fmt.Errorf("%d InferencePools have %s: set control's --mesh-pool to the one for registered models",
			len(found), what)
	}
	return found[0], nil
}

// poolsWith returns the pools that have at least one endpoint that satisfies the condition.
func poolsWith(w *objects.World, is func(objects.Endpoint) bool) (found []objects.Name) {
	for name, p := range w.Pools {
		if slices.ContainsFunc(p.Endpoints, is) {
			found = append(found, name)
		}
	}
	return found
}

// Ensure asks for a copy of a model if it has none. used is the model's last use.
func (p *Placer) Ensure(key decide.Key, used time.Time) {
	p.update(func(time.Time) []decide.Action {
		p.state.Used(key, decide.Use{Last: used})
		p.state.Ensure(key)
		return nil
	})
}

// entryOf returns the catalogue entry of a registered model. The caller holds mu.
func (p *Placer) entryOf(m *v1alpha1.Model) objects.Entry {
	e := objects.EntryOf(m)
	return e.Complete(p.world.Pools[e.Pool])
}

// readRecords reads the records of an earlier process.
func (p *Placer) readRecords() error {
	models, err := p.Memory.Models()
	if err != nil {
		return fmt.Errorf("registered models: %w", err)
	}
	statuses, err := p.Memory.Statuses()
	if err != nil {
		return fmt.Errorf("status of models: %w", err)
	}
	runtimes, err := p.Memory.Runtimes()
	if err != nil {
		return fmt.Errorf("runtimes: %w", err)
	}
	drains, err := p.Memory.Drains()
	if err != nil {
		return fmt.Errorf("drained endpoints: %w", err)
	}
	for _, d := range drains {
		p.drains[d.Endpoint] = d.Until
	}
	if p.restored, err = p.Memory.Copies(); err != nil {
		return fmt.Errorf("copies: %w", err)
	}
	for _, st := range statuses {
		if key, ok := keyOf(st.Pool, st.ID); ok {
			if used := st.Status.LastUsed; used != nil {
				p.used[key] = used.Time
			}
			if len(st.Status.Failures) > 0 {
				p.failed = append(p.failed, st)
			}
		}
	}
	registered := make(map[decide.Key]bool, len(models))
	for i := range models {
		m := &models[i]
		e := p.entryOf(m)
		p.registered[e.ModelKey], registered[e.ModelKey] = m, true
		p.markLoose(e.ModelKey)
		p.state.SetModel(e, p.used[e.ModelKey])
	}
	for _, r := range runtimes {
		p.records[r.Endpoint] = loader.Record{Known: true, Incarnation: r.Incarnation, Limits: loader.Limits{
			Bytes: r.Bytes, DefaultBytes: r.DefaultBytes, Loads: r.Loads, LoadTimeout: r.LoadTimeout, Methods: r.Methods,
			LimitsConcurrency: r.LimitsConcurrency,
		}}
		p.Publisher.SetMethods(r.Endpoint, r.Methods)
	}
	p.restored = slices.DeleteFunc(p.restored, func(c store.Copy) bool { // recorded for an earlier incarnation
		r, known := p.records[c.Endpoint]
		earlier := known && r.Incarnation != c.Incarnation
		if earlier {
			p.Memory.DeleteCopy(c.Endpoint, c.Pool, c.ID)
		}
		return earlier
	})
	p.Publisher.Publish(decide.Change{Registered: registered})
	return p.recallVModels()
}

func keyOf(pool, id string) (decide.Key, bool) {
	namespace, name, ok := strings.Cut(pool, "/")
	return decide.Key{Pool: objects.Name{Namespace: namespace, Name: name}, ID: id}, ok
}

var recorded = map[string]decide.CopyState{
	decide.Loading.String(): decide.Loading, decide.Loaded.String(): decide.Loaded, decide.Unloading.String(): decide.Unloading,
}

// restore applies the records of copies and failures that an earlier process wrote. It applies each
// record only once. The caller holds mu.
func (p *Placer) restore(now time.Time) {
	for _, c := range p.restored {
		key, ok := keyOf(c.Pool, c.ID)
		if p.endpoints[c.Endpoint] == nil || !ok {
			p.Memory.DeleteCopy(c.Endpoint, c.Pool, c.ID)
			continue
		}
		p.state.Restore(decide.Record{
			CopyKey: decide.CopyKey{ModelKey: key, Endpoint: c.Endpoint}, State: recorded[c.State], Bytes: c.Bytes,
			Source:      decide.SizeSource(max(0, slices.Index(decide.SizeSources[:], c.Size))),
			Limit:       c.Concurrency,
			Incarnation: c.Incarnation,
		}, now)
	}
	p.restored = nil
	for _, was := range p.failed {
		key, _ := keyOf(was.Pool, was.ID)
		is, there := p.state.Status(key)
		if !there || is.Generation != was.Status.ObservedGeneration || was.Digest != "" && was.Digest != digestOf(is.Entry) {
			continue // the load that failed was of a different model
		}
		for _, f := range was.Status.Failures {
			p.state.RestoreFailure(key, decide.Failure{
				Endpoint: f.Endpoint, At: f.At.Time, Message: f.Message,
				Why: decide.Reason(f.Reason),
			}, now)
		}
	}
	p.failed = nil
}

// digestOf returns a digest of the fields of a model that an engine receives with a load.
func digestOf(e objects.Entry) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", e.Type, e.Source, e.Info))
	return hex.EncodeToString(sum[:8])
}

// save writes the status of models that changed. At longer intervals, or if everything is set, it
// also writes the status of models that were only used.
func (p *Placer) save(everything bool) {
	p.mu.Lock()
	if everything = everything || time.Since(p.savedUse) >= usedInterval; everything {
		p.savedUse = time.Now()
	}
	var all []store.Status
	for key, changed := range p.unsaved {
		if !changed && !everything {
			continue
		}
		delete(p.unsaved, key)
		record := store.Status{Pool: key.Pool.String(), ID: key.ID, Gone: true}
		if st, ok := p.state.Status(key); ok {
			record.Object, record.UID, record.Status, record.Gone = st.Object, st.UID, p.modelStatus(st), false
			if len(st.Failures) > 0 {
				record.Digest = digestOf(st.Entry)
			}
		}
		all = append(all, record)
	}
	moved := p.saveVModels()
	p.mu.Unlock()
	if len(all) > 0 {
		p.Memory.PutStatuses(all)
	}
	if len(moved) > 0 {
		p.Memory.PutVModelStatuses(moved)
	}
}

// placementOf converts the placement settings of a pool. s may be nil.
func placementOf(s *v1alpha1.PoolSettingsSpec) (is decide.Pool) {
	if s == nil || s.Placement == nil {
		return is
	}
	if n := s.Placement.ScaleUpRPM; n != nil {
		is.RPM = int(*n)
	}
	is.LRU = s.Placement.Eviction == v1alpha1.EvictionLRU
	is.LoadTimeout, is.FailureExpiry = durationOf(s.Placement.LoadTimeout), durationOf(s.Placement.FailureExpiry)
	return is
}
