package fleet

import (
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/internal/objects"
)

// Maker is the endpoint that made an answer, and its pool.
type Maker struct {
	Pool    objects.Name
	Address string
}

// maxAnswers bounds how many answers are remembered; some 200 bytes each. Engines keep them in memory too, and only until
// they restart.
const maxAnswers = 65536

func newMakers() *lru.Cache[string, Maker] {
	c, err := lru.New[string, Maker](maxAnswers)
	if err != nil {
		panic(err) // the size is above 0
	}
	return c
}

// Made remembers who made an answer that clients may ask for again.
func (f *Fleet) Made(answer string, m Maker) { f.makers.Add(answer, m) }

// Maker returns who made an answer.
func (f *Fleet) Maker(answer string) (Maker, bool) { return f.makers.Get(answer) }
