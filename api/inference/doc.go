// Package inference contains KServe's V2 inference protocol over gRPC. It is generated from
// inference.proto.
package inference
