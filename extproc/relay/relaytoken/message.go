package relaytoken

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/relayed"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// version is the version of the token format. Tokens of other versions are rejected.
const version = 3

func messageOf(e *Request) *relayed.Request {
	m := &relayed.Request{
		Version: version, Kind: string(e.Kind), Back: e.Back, Listener: e.Listener, Given: e.Given.String(), All: e.All, Id: e.ID,
		SentAt: e.SentAt, Most: e.Most, Last: e.Last, Fallback: e.Fallback,
	}
	for i := range e.Models {
		t := &e.Models[i].Target
		model := &relayed.Model{
			Name: e.Models[i].Name, Route: t.Route.String(), Pool: t.Pool.String(), Adapter: t.Adapter, Open: t.Open, Priority: t.Priority,
		}
		for _, o := range t.Objectives {
			objective := &relayed.Objective{Type: string(o.Type), Nanoseconds: int64(o.Latency.Value.Duration)}
			if q := o.Latency.Quantile; q != nil {
				objective.Numerator, objective.Denominator = q.Numerator, q.Denominator
			}
			model.Objectives = append(model.Objectives, objective)
		}
		m.Models = append(m.Models, model)
	}
	for _, c := range e.Tried {
		m.Tried = append(m.Tried, &relayed.Copy{Endpoint: c.Endpoint, At: c.At, Model: c.Model})
	}
	return m
}

func requestOf(m *relayed.Request) Request {
	e := Request{
		Kind: Kind(m.Kind), Back: m.Back, Listener: m.Listener, Given: objectName(m.Given), All: m.All, ID: m.Id,
		SentAt: m.SentAt, Most: m.Most, Last: m.Last, Fallback: m.Fallback,
	}
	for _, of := range m.Models {
		model := Model{Name: of.Name}
		t := &model.Target
		t.Route, t.Pool, t.Adapter, t.Open, t.Priority = objectName(of.Route), objectName(of.Pool), of.Adapter, of.Open, of.Priority
		for _, o := range of.Objectives {
			latency := v1alpha1.Latency{Value: metav1.Duration{Duration: time.Duration(o.Nanoseconds)}}
			if o.Denominator != 0 {
				latency.Quantile = &v1alpha1.Quantile{Numerator: o.Numerator, Denominator: o.Denominator}
			}
			t.Objectives = append(t.Objectives, v1alpha1.Objective{Type: v1alpha1.ObjectiveType(o.Type), Latency: latency})
		}
		e.Models = append(e.Models, model)
	}
	for _, c := range m.Tried {
		e.Tried = append(e.Tried, Copy{Endpoint: c.Endpoint, At: c.At, Model: c.Model})
	}
	return e
}

// objectName parses the result of [objects.Name.String]. It cuts at the last slash, so that String
// returns a text that parses to the same name, whatever the text is.
func objectName(text string) objects.Name {
	slash := strings.LastIndexByte(text, '/')
	if slash < 0 {
		return objects.Name{Name: text}
	}
	return objects.Name{Namespace: text[:slash], Name: text[slash+1:]}
}
