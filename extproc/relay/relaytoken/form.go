package relaytoken

import (
	"encoding/binary"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// form writes an errand as bytes, or reads it from them: its methods name what there is, in one order for both. Numbers are varints; a string
// comes after its length, a list after that of its elements. Every request that control places carries an errand, so it is short and soon made.
type form struct {
	bytes  []byte // what is written, or what is yet to be read
	reads  bool
	broken bool // what is read is no errand
}

// errands of another version are not read.
const version = 2

func (f *form) errand(e *Errand) {
	is := int64(version)
	f.number(&is)
	f.broken = f.broken || is != version
	f.text((*string)(&e.Kind))
	f.text(&e.Back)
	f.text(&e.Listener)
	f.name(&e.Given)
	list(f, &e.Models, f.model)
	f.flag(&e.All)
	f.text(&e.ID)
	list(f, &e.Tried, f.copied)
	f.number(&e.SentAt)
	f.number(&e.Most)
	f.flag(&e.Last)
}

func (f *form) model(m *Model) {
	f.text(&m.Name)
	t := &m.Target
	f.name(&t.Route)
	f.name(&t.Pool)
	f.text(&t.Adapter)
	f.flag(&t.Open)
	number(f, &t.Priority)
	list(f, &t.Objectives, f.objective)
}

func (f *form) objective(o *v1alpha1.Objective) {
	f.text((*string)(&o.Type))
	number(f, &o.Latency.Value.Duration)
	has := o.Latency.Quantile != nil
	if f.flag(&has); !has {
		return
	}
	if f.reads {
		o.Latency.Quantile = new(v1alpha1.Quantile)
	}
	number(f, &o.Latency.Quantile.Numerator)
	number(f, &o.Latency.Quantile.Denominator)
}

func (f *form) copied(c *Copy) {
	f.text(&c.Endpoint)
	f.text(&c.At)
	f.text(&c.Model)
}

func (f *form) name(n *objects.Name) {
	f.text(&n.Namespace)
	f.text(&n.Name)
}

func (f *form) text(s *string) {
	n := int64(len(*s))
	f.number(&n)
	switch {
	case !f.reads:
		f.bytes = append(f.bytes, *s...)
	case n < 0 || n > int64(len(f.bytes)):
		f.broken = true
	default:
		*s, f.bytes = string(f.bytes[:n]), f.bytes[n:]
	}
}

func (f *form) flag(b *bool) {
	var n int64
	if *b {
		n = 1
	}
	f.number(&n)
	*b = n != 0
}

func (f *form) number(n *int64) {
	if !f.reads {
		f.bytes = binary.AppendVarint(f.bytes, *n)
		return
	}
	is, size := binary.Varint(f.bytes)
	if size <= 0 {
		f.broken, f.bytes, is, size = true, nil, 0, 0
	}
	*n, f.bytes = is, f.bytes[size:]
}

// number is a number of another type.
func number[T int32 | time.Duration](f *form, n *T) {
	is := int64(*n)
	f.number(&is)
	*n = T(is)
}

// list is nil where it has no elements.
func list[T any](f *form, all *[]T, each func(*T)) {
	n := int64(len(*all))
	if f.number(&n); f.reads {
		if n > int64(len(f.bytes)) { // each takes at least a byte
			f.broken = true
			return
		}
		if n > 0 {
			*all = make([]T, n)
		}
	}
	for i := range *all {
		each(&(*all)[i])
	}
}
