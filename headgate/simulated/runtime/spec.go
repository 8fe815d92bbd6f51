package runtime

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/resource"
)

// specScheme is the prefix of a path that describes the behaviour of a model. A model with another
// path has the defaults of the runtime.
const specScheme = "sim:"

// specHelp explains the paths of models in --help.
const specHelp = `The path of a model may describe its behaviour, as sim:?KEY=VALUE&..., with %20 for a space. Other paths have the
defaults:

  size=50Mi       memory of the model (default --default-size)
  load=300ms      duration of a load (default 0s)
  unload=1s       duration of an unload, which frees the memory at its end (default 0s)
  predict=40Mi    size that predictModelSize returns (default: the size)
  sizing=2s       a load does not return the size, and modelSize takes this long
  infer=5ms       duration of a V2 inference (default 0s)
  concurrency=2   limit of concurrent inferences, for a runtime with --concurrency (default: that limit)
  refuse=CODE:WORDS
                  V2 inferences fail with this gRPC status: refuse=UNAVAILABLE:busy
  fail=CODE:WORDS loads fail at their end with this gRPC status: fail=INTERNAL:disk%20broken
  failures=2      only this many loads fail (default all)
  hang            loads never end
  stubborn        a load continues when its caller has left, and an unload waits for its end

  sim:?size=50Mi&load=300ms
  sim:?load=2s&stubborn
  sim:?fail=FAILED_PRECONDITION:no%20such%20file
  sim:?fail=INTERNAL:disk%20broken&failures=2&load=1s
`

// spec describes the behaviour of a model.
type spec struct {
	size, predict  int64
	load, unload   time.Duration
	sizing, infer  time.Duration
	sizes          bool // the path sets sizing
	concurrency    int  // limit of concurrent inferences; 0 for the runtime's default
	code           codes.Code
	words          string
	refusal        codes.Code // gRPC status of every inference; OK if inferences succeed
	refusing       string     // message of that status
	failures       int        // number of loads that fail before one succeeds; -1 if all fail
	hang, stubborn bool
}

// parseSpec parses the path of a model.
func parseSpec(path string, defaultSize int64) (spec, error) {
	s := spec{size: defaultSize, predict: -1, failures: -1}
	text, ok := strings.CutPrefix(path, specScheme)
	if !ok {
		s.predict = s.size
		return s, nil
	}
	values, err := url.ParseQuery(strings.TrimPrefix(text, "?"))
	if err != nil {
		return s, fmt.Errorf("path %q: %w", path, err)
	}
	for key, all := range values {
		if err := s.set(key, all[len(all)-1]); err != nil {
			return s, fmt.Errorf("path %q: %s: %w", path, key, err)
		}
	}
	if s.predict < 0 {
		s.predict = s.size
	}
	return s, nil
}

func (s *spec) set(key, value string) (err error) {
	switch key {
	case "size":
		s.size, err = parseSize(value)
	case "predict":
		s.predict, err = parseSize(value)
	case "load":
		s.load, err = time.ParseDuration(value)
	case "unload":
		s.unload, err = time.ParseDuration(value)
	case "sizing":
		s.sizes = true
		s.sizing, err = time.ParseDuration(value)
	case "infer":
		s.infer, err = time.ParseDuration(value)
	case "concurrency":
		s.concurrency, err = strconv.Atoi(value)
		if err == nil && s.concurrency < 1 {
			err = errors.New("it must be at least 1")
		}
	case "fail":
		code, words, _ := strings.Cut(value, ":")
		s.words = words
		err = s.code.UnmarshalJSON([]byte(strconv.Quote(code)))
	case "refuse":
		code, words, _ := strings.Cut(value, ":")
		s.refusing = words
		err = s.refusal.UnmarshalJSON([]byte(strconv.Quote(code)))
	case "failures":
		s.failures, err = strconv.Atoi(value)
	case "hang":
		s.hang = true
	case "stubborn":
		s.stubborn = true
	default:
		err = errors.New("there is no such key; headgate engine --kind modelruntime --help has them all")
	}
	return err
}

// parseSize parses a number of bytes, such as 50Mi.
func parseSize(text string) (int64, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	if q.Sign() < 0 {
		return 0, fmt.Errorf("%s is below 0", text)
	}
	return q.Value(), nil
}
