package transcode_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/extproc/transcode"
)

// large returns a request of about this many MiB. It has one tensor of floats, in the form in which
// Python clients write it.
func large(mib int) []byte {
	c := rand.New(rand.NewPCG(1, 4))
	var data strings.Builder
	n := 0
	for ; data.Len() < mib<<20; n++ {
		if n > 0 {
			data.WriteString(", ")
		}
		fmt.Fprint(&data, c.Float32())
	}
	return []byte(one("FP32", fmt.Sprintf("[%d]", n), "["+data.String()+"]"))
}

// Converting a large request needs memory for its elements in raw form, for their packed form, and
// for the message, but not for a tree of JSON values.
func TestLargeRequestIsCopiedAFewTimes(t *testing.T) {
	body := large(1)
	r, err := transcode.Read(infer, "", body)
	if err != nil {
		t.Fatal(err)
	}
	if allocs := testing.AllocsPerRun(5, func() { _, _ = transcode.Read(infer, "", body) }); allocs > 60 {
		t.Errorf("%v allocations", allocs)
	}
	m := new(inference.ModelInferRequest)
	if err := proto.Unmarshal(r.Message, m); err != nil {
		t.Fatal(err)
	}
	answer, err := proto.Marshal(&inference.ModelInferResponse{Outputs: []*inference.ModelInferResponse_InferOutputTensor{
		{Name: "y", Datatype: "FP32", Shape: m.GetInputs()[0].GetShape(), Contents: m.GetInputs()[0].GetContents()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if allocs := testing.AllocsPerRun(5, func() { _ = r.Answer(answer) }); allocs > 60 {
		t.Errorf("the answer: %v allocations", allocs)
	}
}

// BenchmarkTranscode converts a request with 1 MiB of JSON, and an answer with the same floats. For
// comparison it also measures the oracle.
func BenchmarkTranscode(b *testing.B) {
	body := large(1)
	r, err := transcode.Read(infer, "", body)
	if err != nil {
		b.Fatal(err)
	}
	m, wanted, err := oracle(infer, "", body)
	if err != nil {
		b.Fatal(err)
	}
	response, err := proto.Marshal(&inference.ModelInferResponse{Outputs: []*inference.ModelInferResponse_InferOutputTensor{
		{Name: "y", Datatype: "FP32", Shape: m.GetInputs()[0].GetShape(), Contents: m.GetInputs()[0].GetContents()},
	}})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"request/impl=plain", func() { _, _, _ = oracle(infer, "", body) }},
		{"request/impl=headgate", func() { _, _ = transcode.Read(infer, "", body) }},
		{"answer/impl=plain", func() { _, _, _ = answer(response, wanted) }},
		{"answer/impl=headgate", func() { _ = r.Answer(response) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.do()
			}
		})
	}
}
