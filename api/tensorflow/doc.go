// Package tensorflow contains the part of TensorFlow Serving's interface that manages models. It is
// generated from tensorflow.proto.
package tensorflow
