package accesslog

import (
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/internal/engine"
)

// fields is one namespace of dynamic metadata. A missing field, or one of another type, reads as
// empty.
type fields map[string]*structpb.Value

func metadata(common *accesslogdatav3.AccessLogCommon, namespace string) fields {
	return common.GetMetadata().GetFilterMetadata()[namespace].GetFields()
}

func (f fields) text(key string) string { return f[key].GetStringValue() }

func (f fields) flag(key string) bool { return f[key].GetBoolValue() }

func (f fields) number(key string) engine.Value {
	if n, ok := f[key].GetKind().(*structpb.Value_NumberValue); ok {
		return engine.Known(n.NumberValue)
	}
	return engine.Value{}
}
