package decode

import (
	"strconv"
	"strings"
	"testing"
)

func BenchmarkDecode(b *testing.B) {
	for _, c := range all {
		for _, kilobytes := range []int{1, 16, 256} {
			var body strings.Builder
			for i := 0; body.Len() < kilobytes<<10; i++ {
				body.WriteString("The quick brown fox " + strconv.Itoa(i*i) + " jumps over the lazy dog. ")
			}
			encoded := encode(b, []byte(body.String()), c)
			d := New(32 << 20)
			b.Run(c.String()+"/"+strconv.Itoa(kilobytes)+"k", func(b *testing.B) {
				b.SetBytes(int64(body.Len()))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := d.Decode(encoded, []Coding{c}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
