package kserve_test

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/extproc/kserve"
)

// infer returns a message of about size bytes, as a V2 client sends it: the model's name, the shape
// of a tensor, and the tensor's values.
func infer(size int) []byte {
	return []byte(str(1, "sentiment") + str(3, "42") + str(5, str(1, "input-0"), str(2, "FP32"), str(3, "\x01\x10")) +
		str(7, string(make([]byte, size))))
}

// However large the message is, Extract allocates only the id, and Inject only the new message.
// Injecting the same id allocates nothing.
func TestSplicingAllocatesOnlyItsResult(t *testing.T) {
	id := string(bytes.Repeat([]byte("m"), 1000))
	for _, path := range []kserve.Path{{1}, {5, 1}, {5, 9}, {8, 1}} {
		for _, size := range []int{0, 1 << 10, 1 << 20} {
			message := infer(size)
			for name, c := range map[string]struct {
				most float64
				do   func() error
			}{
				"extract": {1, func() error { _, _, err := kserve.Extract(message, path); return err }},
				"inject":  {1, func() error { _, err := kserve.Inject(message, path, id); return err }},
			} {
				allocs := testing.AllocsPerRun(20, func() {
					if err := c.do(); err != nil {
						t.Fatal(err)
					}
				})
				if allocs > c.most {
					t.Errorf("%s, %v, %d bytes: %v allocations, want at most %v", name, path, size, allocs, c.most)
				}
			}
		}
	}
	message := infer(1 << 10)
	if allocs := testing.AllocsPerRun(20, func() {
		if _, err := kserve.Inject(message, kserve.Path{1}, "sentiment"); err != nil {
			t.Fatal(err)
		}
	}); allocs > 0 {
		t.Errorf("the same id again: %v allocations, want none", allocs)
	}
}

// BenchmarkInject compares Inject with a plain copy of the message: go test ./extproc/kserve -run
// "^$" -bench Inject.
func BenchmarkInject(b *testing.B) {
	for _, kb := range []int{1, 64, 1 << 10, 16 << 10} {
		message := infer(kb << 10)
		b.Run(fmt.Sprintf("message=%dKB/impl=plain", kb), func(b *testing.B) {
			b.SetBytes(int64(len(message)))
			b.ReportAllocs()
			for b.Loop() {
				if len(bytes.Clone(message)) != len(message) {
					b.Fatal("no copy")
				}
			}
		})
		b.Run(fmt.Sprintf("message=%dKB/impl=headgate", kb), func(b *testing.B) {
			b.SetBytes(int64(len(message)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := kserve.Inject(message, kserve.Path{1}, "sentiment-v2"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkExtractAndInject measures Extract and Inject together, since each call needs both, and
// compares them with a protobuf parser: go test ./extproc/kserve -run "^$" -bench ExtractAndInject.
func BenchmarkExtractAndInject(b *testing.B) {
	for _, path := range []kserve.Path{{1}, {5, 1}} {
		message := infer(1 << 10)
		d := bare(b, path)
		b.Run(fmt.Sprintf("message=1KB/levels=%d/impl=plain", len(path)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := decode(d, message)
				if err != nil {
					b.Fatal(err)
				}
				if _, found := at(m, path); !found {
					b.Fatal("not found")
				}
				set(m, path, "sentiment-v2")
				if _, err := proto.Marshal(m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("message=1KB/levels=%d/impl=headgate", len(path)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, found, err := kserve.Extract(message, path); err != nil || !found {
					b.Fatal(found, err)
				}
				if _, err := kserve.Inject(message, path, "sentiment-v2"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
