package admin_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headgate/headgate/api/admin"
)

func TestConditionsAreMerged(t *testing.T) {
	all := []admin.Condition{
		{Kind: "LLMRoute", Name: "a", Type: "Accepted", Reason: "R", Message: "m"},
		{Kind: "LLMRoute", Name: "a", Type: "Ready", Reason: "R", Message: "other"},
		{Kind: "LLMRoute", Name: "b", Type: "Ready", Reason: "R", Message: "m"},
		{Kind: "LLMRoute", Name: "b", Type: "Ready", Reason: "R", Message: "m"},
		{Kind: "LLMRoute", Name: "c", Type: "Accepted", Reason: "R", Message: "m"},
		{Kind: "LLMRoute", Name: "c", Type: "Ready", Reason: "R", Message: "m"},
		{Kind: "LLMRoute", Name: "d", Of: "Gateway g", Type: "Ready", Reason: "R", Message: "m"},
		{Kind: "Model", Name: "a", Type: "Ready", Reason: "R", Message: "m"},
		{Kind: "Model", Name: "b", Type: "Ready", Reason: "R", Message: "n"},
	}
	var got []string
	for _, m := range admin.Merge(all) {
		got = append(got, fmt.Sprint(m))
	}
	want := []string{
		"{LLMRoute  [a c] [Accepted Ready] R m}", "{LLMRoute  [b] [Ready] R m}", "{LLMRoute Gateway g [d] [Ready] R m}",
		"{Model  [a] [Ready] R m}", "{Model  [b] [Ready] R n}",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
