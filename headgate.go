// Package headgate holds what programs are built with: the data plane that envoy.yaml describes.
package headgate

import _ "embed"

// EnvoyYAML is envoy.yaml. Control takes the configuration of a Gateway's Envoys from it.
//
//go:embed envoy.yaml
var EnvoyYAML []byte
