package files_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
)

// oracle is what a Store should have: a list of sources with their versions, most recently used
// last, searched from the beginning for everything.
type oracle struct {
	limit   int
	sources []*kept
	models  map[string]*kept
}

// kept is a version of a source on disk.
type kept struct {
	uri           string
	version, size int
	superseded    bool
}

func (o *oracle) used() (n int) {
	for _, k := range o.sources {
		n += k.size
	}
	return n
}

func (o *oracle) inUse(k *kept) bool {
	return slices.Contains(slices.Collect(maps.Values(o.models)), k)
}

func (o *oracle) remove(k *kept) {
	o.sources = slices.DeleteFunc(o.sources, func(other *kept) bool { return other == k })
}

// touch makes k the most recently used one, unless it was removed.
func (o *oracle) touch(k *kept) {
	if slices.Contains(o.sources, k) {
		o.remove(k)
		o.sources = append(o.sources, k)
	}
}

func (o *oracle) release(id string) {
	k := o.models[id]
	delete(o.models, id)
	if k == nil {
		return
	}
	o.touch(k)
	if k.superseded && !o.inUse(k) {
		o.remove(k)
	}
}

// fetch returns whether the files are on disk already, and whether there is room for them.
func (o *oracle) fetch(id, uri string, version, size int) (hit, ok bool) {
	var k *kept
	for _, other := range o.sources {
		if other.uri == uri && other.version == version {
			k, hit = other, true
		}
	}
	if k == nil {
		inUse := 0
		for _, other := range o.sources {
			if o.inUse(other) {
				inUse += other.size
			}
		}
		if inUse+size > o.limit {
			return false, false
		}
		for o.used()+size > o.limit {
			o.remove(o.sources[slices.IndexFunc(o.sources, func(other *kept) bool { return !o.inUse(other) })])
		}
		k = &kept{uri: uri, version: version, size: size}
		o.sources = append(o.sources, k)
	}
	k.superseded = false
	for _, other := range slices.Clone(o.sources) {
		if other != k && other.uri == uri {
			other.superseded = true
			if !o.inUse(other) {
				o.remove(other)
			}
		}
	}
	if o.models[id] != k {
		o.release(id)
		o.models[id] = k
	}
	o.touch(k)
	return hit, true
}

// A Store does what the oracle does, in random histories of fetches, releases, changes of sources
// and restarts.
func TestHistories(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { history(t, seed) })
	}
}

func history(t *testing.T, seed uint64) {
	const limit = 10_000
	random := rand.New(rand.NewPCG(seed, 1))
	m, dir := newMemory(), t.TempDir()
	now := clock()
	limited := func(c *files.Config) { c.Limit, c.Now = limit, now }
	s := open(t, dir, m, limited)
	o := &oracle{limit: limit, models: make(map[string]*kept)}
	change := func(uri string) {
		m.put(uri, &source{content: map[string][]byte{"a": noise(random.Uint64(), 500+random.IntN(4000)), "d/b": noise(1, 10)}})
	}
	uris := []string{"s3://b/0", "s3://b/1", "s3://b/2", "s3://b/3", "s3://b/4"}
	for _, uri := range uris {
		change(uri)
	}
	for step := range 150 {
		id, uri := fmt.Sprint("m", random.IntN(5)), uris[random.IntN(len(uris))]
		what := fmt.Sprintf("step %d: ", step)
		switch n := random.IntN(20); {
		case n == 0:
			what += "restart"
			s.Wait()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for _, k := range o.sources {
				k.superseded = false // the next process does not know
			}
			s = open(t, dir, m, limited)
		case n < 3:
			what += "change " + uri
			change(uri)
		case n < 10:
			what += "release " + id
			if err := s.Release(id); err != nil {
				t.Fatal(err)
			}
			o.release(id)
		default:
			what += "fetch " + id + " from " + uri
			src := m.sources[uri]
			before := m.asked
			hit, ok := o.fetch(id, uri, src.version, len(src.content["a"])+10)
			local, err := s.Fetch(t.Context(), id, of(uri))
			switch asked := m.asked - before; {
			case !ok:
				wantReason(t, err, fetch.Full)
			case err != nil:
				t.Fatalf("%s: %v", what, err)
			case hit != (asked <= 1): // a byte if the credentials are new to the process
				t.Fatalf("%s: %d bytes were asked for, hit: %v", what, asked, hit)
			default:
				wantTree(t, local.Path, text(src.content))
			}
		}
		s.Wait()
		var ids []string
		for _, model := range s.Models() {
			ids = append(ids, model.ID)
		}
		if want := slices.Sorted(maps.Keys(o.models)); !slices.Equal(ids, want) {
			t.Fatalf("%s: models are %v, want %v", what, ids, want)
		}
		if used, measured := s.Used(), s.Measured(); used != int64(o.used()) || measured != used {
			t.Fatalf("%s: %d bytes count, %d are on disk, want %d", what, used, measured, o.used())
		}
	}
	wantEmpty(t, s, m)
}
