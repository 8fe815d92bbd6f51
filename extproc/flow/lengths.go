package flow

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/headgate/headgate/internal/objects"
)

// lengths are the mean numbers of output tokens by route and tenant, learned from requests that
// waited. They contain at most maxLengths entries; the one that was unused for longest makes room
// for another.
type lengths struct {
	means *simplelru.LRU[lengthKey, float64]
}

type lengthKey struct {
	route  objects.Name
	tenant uint64
}

// maxLengths bounds the memory of lengths to about 1 MB.
const maxLengths = 4096

// weight is the weight of the latest answer in a mean. The mean has the memory of about 16 answers.
const weight = 1.0 / 16

func newLengths() lengths {
	means, _ := simplelru.NewLRU[lengthKey, float64](maxLengths, nil) // an error means a size of 0
	return lengths{means}
}

// learn adds an answer with this number of tokens to the mean of its route and tenant.
func (l *lengths) learn(k lengthKey, tokens float64) {
	if mean, known := l.means.Get(k); known {
		tokens = mean + weight*(tokens-mean)
	}
	l.means.Add(k, tokens)
}

// expected returns the number of tokens to expect: the mean of the route and tenant if it is known,
// else otherwise. Limit is the most tokens that the request allows; 0 means no limit.
func (l *lengths) expected(k lengthKey, otherwise, limit float64) float64 {
	mean, known := l.means.Get(k)
	if !known {
		return otherwise
	}
	if limit > 0 {
		return min(mean, limit)
	}
	return mean
}
