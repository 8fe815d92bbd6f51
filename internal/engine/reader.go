package engine

import (
	"math"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Reader reads the metrics pages of one engine. It is not safe for concurrent use. The zero Reader
// is ready for use. It keeps nothing of a page's bytes, and a few KB altogether.
//
// A vLLM page has 50 to 80 KB, of which a hundred lines matter here. From page to page only their
// values change. So a Reader remembers a hash of each of these lines without its value: the layout.
// On a page with the same layout it parses only values. Otherwise [expfmt] parses the lines, and
// determines what they mean: each line is given its own index as its value, and the values of the
// resulting selection are then the indices of the lines to read.
type Reader struct {
	kind  Kind
	known bool // whether there is a layout
	lines []line
	sets  sets

	values    values // by index in lines
	selection selection
	load      Load // of selection and values
}

// line is a wanted line of a layout.
type line struct {
	hash   uint64 // of its first bytes
	length uint32 // number of these bytes: without the value of a sample
	kind   lineKind
}

type lineKind uint8

const (
	comment lineKind = iota // the whole line is hashed
	sample
	count // a sample whose value must be a whole number, because the parser treats others in another way
)

// sets are the series of vLLM's table of adapters, each for a set of adapters. They differ from
// other series: new ones appear while the engine runs, and only the newest counts.
type sets struct {
	name   string // family name; empty if there are none
	before int    // index of the line of the layout that follows them
	used   bool   // whether the dialect has the table
	lines  []line
	newest uint64 // hash of the newest line, whose adapters are in the selection
}

// maxLines bounds the memory of a Reader. Pages with more wanted lines are parsed each time.
const maxLines = 8192

// Load parses a page in Prometheus' text format. If kind is unknown, the page's names determine it.
// A page in another format is an error; a missing metric is an unknown Value. Lines of families
// that do not count are not checked.
func (r *Reader) Load(page []byte, kind Kind) (Load, error) {
	if r.known && r.kind == kind && r.read(page) {
		return r.load, nil
	}
	*r = Reader{kind: kind}
	if r.learn(page) && r.read(page) {
		return r.load, nil
	}
	*r = Reader{}
	lines, config := selectLines(page)
	s, _, err := selects(lines, config, kind)
	if err != nil {
		return Load{}, err
	}
	return s.load(nil), nil
}

// selectLines returns the lines of wanted families. Those that never change are in config, unless a
// name is quoted, so that only the parser can determine its family.
func selectLines(page []byte) (others, config []byte) {
	var all []byte
	quoted := false
	l := lines{rest: page}
	for line := l.next(); len(line) > 0; line = l.next() {
		switch name := nameOf(line); {
		case string(name) == quotedName:
			quoted = true
			all = append(all, line...)
		case settled[string(name)]:
			config = append(config, line...)
			all = append(all, line...)
		case wanted[string(name)]:
			others = append(others, line...)
			all = append(all, line...)
		default:
			l.unwanted(line, name)
		}
	}
	if quoted {
		return all, nil
	}
	return others, config
}

// learn sets the layout of a page. It returns false if the page is invalid or unusual: then there
// is none.
func (r *Reader) learn(page []byte) bool {
	var text, config []byte // the lines, with their indices as values
	var names []string
	l := lines{rest: page}
	for next := l.next(); len(next) > 0; next = l.next() {
		name := nameOf(next)
		if string(name) == quotedName {
			return false
		}
		if !wanted[string(name)] {
			l.unwanted(next, name)
			continue
		}
		head, kind := headOf(next), sample
		if isComment(next) {
			head, kind = next, comment
		}
		if len(head) == 0 {
			return false
		}
		to := &text
		if settled[string(name)] {
			to = &config
		}
		*to = append(*to, head...)
		if kind != comment {
			*to = append(strconv.AppendInt(*to, int64(len(r.lines)), 10), '\n')
		}
		one := line{xxhash.Sum64(head), uint32(len(head)), kind}
		if kind == comment || !adapterTables[string(name)] {
			r.lines, names = append(r.lines, one), append(names, string(name))
		} else if !r.sets.add(one, string(name), len(r.lines)) {
			return false
		}
	}
	if len(r.lines)+len(r.sets.lines) > maxLines {
		return false
	}
	selection, found, err := selects(text, config, r.kind)
	if err != nil || !r.sets.plain(found) {
		return false
	}
	for i, name := range names {
		if r.lines[i].kind == sample && (found.inHistogram(name) || settled[name]) { // config is not in found
			r.lines[i].kind = count
		}
	}
	d, _ := dialectOf(selection.kind)
	r.sets.used = slices.ContainsFunc(d.adapters, func(s selector) bool { return s.name == r.sets.name })
	r.selection, r.known = selection, true
	r.lines, r.sets.lines = slices.Clone(r.lines), slices.Clone(r.sets.lines) // without the room to grow
	return true
}

// read sets the load to that of a page that has the layout. It returns false if the page has
// another layout or an unusual value: then there is no layout any more.
func (r *Reader) read(page []byte) bool {
	r.known = false
	first := r.values == nil
	changed := first
	if first {
		r.values = make(values, len(r.lines))
	}
	var newest newestSet
	at, set := 0, 0
	l := lines{rest: page}
	for next := l.next(); len(next) > 0; next = l.next() {
		if at < len(r.lines) && r.lines[at].begins(next) {
			if r.lines[at].kind != comment {
				value, ok := r.lines[at].value(next)
				if !ok {
					return false
				}
				changed = changed || math.Float64bits(value) != math.Float64bits(r.values[at])
				r.values[at] = value
			}
			at++
			continue
		}
		if set == len(r.sets.lines) || !r.sets.lines[set].begins(next) {
			name := nameOf(next)
			if !wanted[string(name)] && string(name) != quotedName {
				l.unwanted(next, name)
				continue
			}
			if string(name) != r.sets.name || !r.sets.insert(set, next) {
				return false
			}
		}
		value, ok := r.sets.lines[set].value(next)
		if !ok || at != r.sets.before {
			return false
		}
		newest.add(next, r.sets.lines[set].hash, value)
		set++
	}
	if at != len(r.lines) || set == 0 && r.sets.name != "" {
		return false
	}
	r.sets.lines = r.sets.lines[:set]
	if r.sets.used && (first || newest.hash != r.sets.newest) {
		found, err := parse(newest.line)
		if err != nil {
			return false
		}
		r.selection.adapters, r.sets.newest = activity(found[r.sets.name].GetMetric()), newest.hash
		changed = true
	}
	if changed {
		r.load = r.selection.load(r.values)
	}
	r.known = true
	return true
}

// begins reports whether a line of a page is l with any value.
func (l line) begins(next []byte) bool {
	n := int(l.length)
	return len(next) >= n && (len(next) == n) == (l.kind == comment) && xxhash.Sum64(next[:n]) == l.hash
}

// value returns the value of a line of a page that is l.
func (l line) value(next []byte) (value float64, ok bool) {
	value, ok = valueOf(next[l.length:])
	return value, ok && (l.kind != count || isWhole(value))
}

// add adds a series at a place in the layout. It returns false if others are elsewhere, or of
// another family.
func (s *sets) add(one line, name string, before int) bool {
	if s.name == "" {
		s.name, s.before = name, before
	}
	s.lines = append(s.lines, one)
	return s.name == name && s.before == before
}

// plain reports whether the series, if any, are no parts of a histogram or summary.
func (s *sets) plain(page families) bool {
	return s.name == "" || len(page.first([]selector{{name: s.name}})) > 0
}

// insert adds a new series before the series with index i. It returns false if the line is no valid
// sample, or if there are too many.
func (s *sets) insert(i int, next []byte) bool {
	head := headOf(next)
	if len(head) == 0 || isComment(next) || len(s.lines) == maxLines {
		return false
	}
	if _, err := parse(next); err != nil {
		return false
	}
	s.lines = slices.Insert(s.lines, i, line{xxhash.Sum64(head), uint32(len(head)), sample})
	return true
}

// newestSet is the series with the highest value, of several the first.
type newestSet struct {
	line  []byte
	hash  uint64
	value float64
}

func (n *newestSet) add(line []byte, hash uint64, value float64) {
	if n.line == nil || value > n.value {
		n.line, n.hash, n.value = line, hash, value
	}
}
